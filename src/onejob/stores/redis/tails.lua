-- Return the record of the last job of each chain: its last continuation, or its first job, whose id is the chain's.
--
-- KEYS  jobs, chains (chain, index and id of each continuation, in order)
-- ARGV  the ids of the chains

local call, jobs, chains = redis.call, KEYS[1], KEYS[2]
local records = {}
for i, chain in ipairs(ARGV) do
  local last = call('ZREVRANGEBYLEX', chains, '(' .. chain .. '!', '[' .. chain .. ' ', 'LIMIT', 0, 1)[1]
  records[i] = call('HGET', jobs, last and string.match(last, '[^ ]+$') or chain)
end
return records
