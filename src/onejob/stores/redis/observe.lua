-- Write one observation; of its subject, keep the newest.
--
-- KEYS  all (ids by time), about (ids of the subject by time), records (id -> record)
-- ARGV  id, time, record, how many the subject keeps

local call, all, about, records = redis.call, KEYS[1], KEYS[2], KEYS[3]
local id, at, record, most = unpack(ARGV)

call('ZADD', all, at, id)
call('ZADD', about, at, id)
call('HSET', records, id, record)
local excess = call('ZCARD', about) - tonumber(most)
if excess > 0 then
  for _, old in ipairs(call('ZRANGE', about, 0, excess - 1)) do
    call('ZREM', about, old)
    call('ZREM', all, old)
    call('HDEL', records, old)
  end
end
return 1
