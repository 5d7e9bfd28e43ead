-- Show who stands for a key, and its mark; but if there is nothing, write a new job, if one is given.
--
-- KEYS     jobs · held · next · marks · counts · then the sorted sets in which the job stands
-- ARGV[1]  "1" if this may have been sent before, ARGV[2]  key, or "", ARGV[3]  "2" to show its mark too
-- ARGV[4…] the job's id · record · "1" if it holds the key · mark, or "" · field of its counter · channel · what to
--          say on it, or "" · score and member in each sorted set
-- Answers what is there, as `swap` does · 1 written · 2 it was written before.

local call, pcall, jobs, held, marks, counts = redis.call, redis.pcall, KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local key, id = ARGV[2], ARGV[4]
local SETS, WORDS = 5, 10 -- what comes before the first set and its score

local holder, successor, mark = false, false, false
if key ~= '' then
  holder, successor = call('HGET', held, key), call('HGET', KEYS[3], key)
  mark = ARGV[3] == '2' and call('HGET', marks, key)
end
if ARGV[1] == '1' and id and call('HEXISTS', jobs, id) == 1 then return 2 end
if holder or successor or mark or not id then
  local shown = {{}, holder, holder and call('HGET', jobs, holder), successor, false, mark, false}
  if successor then shown[5] = call('HGET', jobs, successor) end
  if mark then shown[7] = call('HGET', jobs, string.sub(mark, 2, 1 + string.byte(mark, 1))) end
  return shown
end

-- All of it is new, so what a key of another type keeps from being written can be taken back.
local function take_back(number, last, reply)
  call('HDEL', jobs, id)
  for i = SETS + 1, last do call('ZREM', KEYS[i], ARGV[WORDS + 2 * (i - SETS)]) end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
  return redis.error_reply('FOREIGN ' .. KEYS[number] .. ' is a ' .. call('TYPE', KEYS[number]).ok)
end

call('HSET', jobs, id, ARGV[5])
for i = SETS + 1, #KEYS do
  local word = WORDS + 2 * (i - SETS)
  local reply = pcall('ZADD', KEYS[i], ARGV[word - 1], ARGV[word])
  if type(reply) == 'table' then return take_back(i, i - 1, reply) end
end
local reply = pcall('HINCRBY', counts, ARGV[8], 1)
if type(reply) == 'table' then return take_back(SETS, #KEYS, reply) end
if ARGV[6] == '1' then call('HSET', held, key, id) end
if ARGV[7] ~= '' then call('HSET', marks, key, ARGV[7]) end
if ARGV[10] ~= '' then call('PUBLISH', ARGV[9], ARGV[10]) end
return 1
