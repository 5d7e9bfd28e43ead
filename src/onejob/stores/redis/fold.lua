-- Add counters of absorbed requests to others, and drop them.
--
-- KEYS  the counters · when each was last counted
-- ARGV  the name of a counter and the name of the one that it is added to, and so on

for i = 1, #ARGV, 2 do
  local number = redis.call('HGET', KEYS[1], ARGV[i])
  if number then
    redis.call('HINCRBY', KEYS[1], ARGV[i + 1], number)
    local at, before = redis.call('HGET', KEYS[2], ARGV[i]), redis.call('HGET', KEYS[2], ARGV[i + 1])
    if at and (not before or tonumber(at) > tonumber(before)) then
      redis.call('HSET', KEYS[2], ARGV[i + 1], at)
    end
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('HDEL', KEYS[2], ARGV[i])
  end
end
return false
