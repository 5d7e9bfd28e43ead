-- Change counters of absorbed requests, once, however often the call is repeated.
--
-- KEYS  request (says that the call was done), counts, lasts and firsts (when each was last and first counted), by (what
--       made the last request), jobs (the names of the counters, by job)
-- ARGV  seconds for which the request is remembered; then per change: name of the counter, difference, last and first
--       time, what made the last request ('' if that is unknown), and the name of a counter that is removed and whose
--       number is the difference ('' for none)

local call, request, counts, lasts, firsts, by, jobs = redis.call, unpack(KEYS, 1, 6)
local remembered = ARGV[1]

local function by_job(name)
  return cjson.decode(name)[3] .. ' ' .. name
end

if not call('SET', request, '1', 'NX', 'EX', remembered) then return 0 end

for i = 2, #ARGV, 6 do
  local name, difference, last, first, last_by, removed = unpack(ARGV, i, i + 5)
  if removed ~= '' then
    difference = call('HGET', counts, removed) or 0
    last, first = call('HGET', lasts, removed) or 0, call('HGET', firsts, removed) or 0
    call('HDEL', counts, removed)
    call('HDEL', lasts, removed)
    call('HDEL', firsts, removed)
    call('HDEL', by, removed)
    call('ZREM', jobs, by_job(removed))
  end
  if last_by ~= '' and (tonumber(last) >= tonumber(call('HGET', lasts, name) or 0) or call('HEXISTS', by, name) == 0) then
    call('HSET', by, name, last_by)
  end
  if tonumber(difference) ~= 0 or last_by ~= '' then
    if call('HEXISTS', counts, name) == 0 then call('ZADD', jobs, 0, by_job(name)) end
    call('HINCRBY', counts, name, difference)
    if tonumber(last) > tonumber(call('HGET', lasts, name) or 0) then call('HSET', lasts, name, last) end
    if tonumber(first) < tonumber(call('HGET', firsts, name) or math.huge) then call('HSET', firsts, name, first) end
  end
end
return 1
