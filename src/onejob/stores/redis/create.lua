-- Write new jobs whose keys are free; for each other, and where no job is given, return the rows of the key.
--
-- KEYS     jobs, held, next, marks, counts, then the sorted sets that list the jobs
-- ARGV     channel, message; then of each job
--            a JSON object, in which what is absent is empty:
--              id, key, holds (whether it holds the key), marks (whether the key's mark must be free or shown),
--              mark (to write), counter (that counts the job), wakes (whether to publish the message),
--              zadd {number of a sorted set, score, member, …}
--            its record
-- Returns  per job: 1 (written, now or by the same call before), or the rows, as `commit` returns them
--
-- Jobs share no key.

local call, ARGV, decode, jobs, held, next, marks, counts = redis.call, ARGV, cjson.decode, unpack(KEYS, 1, 5)
local channel, message = ARGV[1], ARGV[2]
local FIXED_ARGS, AT_ONCE = 2, 1000

local function rows_of_key(key, shows_mark)
  local holder, successor = call('HGET', held, key), call('HGET', next, key)
  local mark = shows_mark and call('HGET', marks, key) or false -- nil would end the list
  return {
    {},
    holder, holder and call('HGET', jobs, holder),
    successor, successor and call('HGET', jobs, successor),
    mark, mark and call('HGET', jobs, string.match(mark, '^[^:]*')),
  }
end

local sets, sums, wake, answers = {}, {}, false, {}

local function write(job, record)
  call('HSET', jobs, job.id, record)
  if job.holds then call('HSET', held, job.key, job.id) end
  if job.mark then call('HSET', marks, job.key, job.mark) end
  for i = 1, #job.zadd, 3 do
    local number = job.zadd[i]
    sets[number] = sets[number] or {}
    local words = sets[number]
    words[#words + 1], words[#words + 2] = job.zadd[i + 1], job.zadd[i + 2]
  end
  sums[job.counter] = (sums[job.counter] or 0) + 1
  wake = wake or job.wakes
end

for at = FIXED_ARGS + 1, #ARGV, 2 do
  local job, answer = decode(ARGV[at]), 1
  if not job.id or call('HEXISTS', jobs, job.id) == 0 then
    local rows = job.key and rows_of_key(job.key, job.marks)
    if rows and (rows[2] or rows[4] or rows[6] or not job.id) then
      answer = rows
    else
      write(job, ARGV[at + 1])
    end
  end
  answers[#answers + 1] = answer
end

for number, words in pairs(sets) do
  for first = 1, #words, AT_ONCE do
    call('ZADD', KEYS[number], unpack(words, first, math.min(first + AT_ONCE - 1, #words)))
  end
end
for counter, number in pairs(sums) do call('HINCRBY', counts, counter, number) end
if wake then call('PUBLISH', channel, message) end
return answers
