-- Write observations of one kind; of each subject, keep the newest.
--
-- KEYS  all (ids by time), records (id -> record), then per subject its ids by time
-- ARGV  how many a subject keeps; then of each observation: number of its subject's key, id, time, record

local call, all, records = redis.call, KEYS[1], KEYS[2]
local most = tonumber(ARGV[1])

for at = 2, #ARGV, 4 do
  local about, id, time, record = unpack(ARGV, at, at + 3)
  call('ZADD', all, time, id)
  call('ZADD', KEYS[tonumber(about)], time, id)
  call('HSET', records, id, record)
end
for i = 3, #KEYS do
  local excess = call('ZCARD', KEYS[i]) - most
  if excess > 0 then
    for _, old in ipairs(call('ZRANGE', KEYS[i], 0, excess - 1)) do
      call('ZREM', KEYS[i], old)
      call('ZREM', all, old)
      call('HDEL', records, old)
    end
  end
end
return 1
