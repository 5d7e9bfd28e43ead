-- Add counters of absorbed requests to others, and drop them.
--
-- KEYS  the counters · when each was last counted
-- ARGV  the name of a counter and the name of the one that it is added to, and so on

local counters, times = KEYS[1], KEYS[2]

for i = 1, #ARGV, 2 do
  local number = redis.call('HGET', counters, ARGV[i])
  if number then
    redis.call('HINCRBY', counters, ARGV[i + 1], number)
    local at, before = redis.call('HGET', times, ARGV[i]), redis.call('HGET', times, ARGV[i + 1])
    if at and (not before or tonumber(at) > tonumber(before)) then
      redis.call('HSET', times, ARGV[i + 1], at)
    end
    redis.call('HDEL', counters, ARGV[i])
    redis.call('HDEL', times, ARGV[i])
  end
end
return false
