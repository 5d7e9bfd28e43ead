-- Show the last job of each chain: its last continuation, else the first job, which has its id.
--
-- KEYS  jobs · chain, place in it and id of every continuation, in order
-- ARGV  the chains

local call, jobs, chains = redis.call, KEYS[1], KEYS[2]
local POSITION = 10 -- digits of a continuation's place in its chain
local shown = {}
for i, chain in ipairs(ARGV) do
  local first = chain .. '\0'
  local last = call('ZREVRANGEBYLEX', chains, '(' .. first .. '\255', '[' .. first, 'LIMIT', 0, 1)[1]
  shown[i] = call('HGET', jobs, last and string.sub(last, #first + POSITION + 1) or chain)
end
return shown
