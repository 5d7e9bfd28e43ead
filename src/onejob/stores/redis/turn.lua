-- Take or give back the turn to start jobs of limited queues, where these lie in several buckets.
--
-- KEYS     the turn · whether somebody else has asked for it
-- ARGV[1]  who we are, ARGV[2]  for how many milliseconds, "0" to give it back, ARGV[3]  channel, ARGV[4]  what to say
-- Answers the server's time if the turn is ours now, or nothing.

local turn, wanted = KEYS[1], KEYS[2]
if ARGV[2] ~= '0' then
  if redis.call('SET', turn, ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('TIME') end
  redis.call('SET', wanted, '1', 'PX', ARGV[2])
  return false
end
if redis.call('GET', turn) == ARGV[1] then
  redis.call('DEL', turn)
  if redis.call('DEL', wanted) == 1 then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
end
return false
