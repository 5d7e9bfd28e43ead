-- Write a new job if its key is free; otherwise, or if no job is given, return the rows of the key.
--
-- KEYS     jobs, held, next, marks, counts, then the sorted sets that list the job
-- ARGV     as named below, then the job's score and member in each of those sets
-- Returns  1 (written, now or by the same call before), or the rows, as `commit` returns them

local call, jobs, held, next, marks, counts = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local key, needs_mark, id, record, holds, mark, counter, channel, message = unpack(ARGV, 1, 9)
local FIXED_KEYS, FIXED_ARGS = 5, 9

if id and call('HEXISTS', jobs, id) == 1 then return 1 end

if key ~= '' then
  local holder, successor = call('HGET', held, key), call('HGET', next, key)
  local stored_mark = needs_mark == '1' and call('HGET', marks, key)
  if holder or successor or stored_mark or not id then
    local rows = {{}, holder, holder and call('HGET', jobs, holder), successor, false, stored_mark, false}
    if successor then rows[5] = call('HGET', jobs, successor) end
    if stored_mark then rows[7] = call('HGET', jobs, string.match(stored_mark, '^[^:]*')) end
    return rows
  end
end

call('HSET', jobs, id, record)
for i = 1, #KEYS - FIXED_KEYS do
  call('ZADD', KEYS[FIXED_KEYS + i], ARGV[FIXED_ARGS + 2 * i - 1], ARGV[FIXED_ARGS + 2 * i])
end
call('HINCRBY', counts, counter, 1)
if holds == '1' then call('HSET', held, key, id) end
if mark ~= '' then call('HSET', marks, key, mark) end
if message ~= '' then call('PUBLISH', channel, message) end
return 1
