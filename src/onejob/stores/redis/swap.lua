-- Write what was decided, if what it was decided on is still so; else show what is there now.
--
-- KEYS     the bucket's hashes and sorted sets, then further sorted sets
-- ARGV     channel · what to say on it · then one group after the other, each a step of its own, atomic by itself
--
-- A group: ids to show, after their number · key, or "" · how much of the key to show (0 nothing, 1 who stands
-- for it, 2 its mark too) · what is expected, or "?" · ids that must be new, after their number · counters, after
-- their number, each with its limit and what is to be added · commands, after their number, each as the number of
-- its words, name, number of its key and words · "1" to ring.
-- Answers: 1 written · 2 it was written before · 3 over the limit · or what is there.

local jobs, held, next, marks, active = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]
local HASHES = 6

for i, name in ipairs(KEYS) do
  local kind = redis.call('TYPE', name).ok
  if kind ~= 'none' and kind ~= (i <= HASHES and 'hash' or 'zset') then
    return redis.error_reply('FOREIGN ' .. name .. ' is a ' .. kind)
  end
end

local function revision(record)
  return record and string.sub(record, 1, 8) or '-'
end

local function framed(text)
  return text and (#text .. ':' .. text) or '-'
end

local function key_of(record)
  return string.sub(record, 10, 9 + string.byte(record, 9))
end

local function job(id)
  return id and redis.call('HGET', jobs, id)
end

local function look(ids, key, depth)
  local seen = {{}, false, false, false, false, false, false}
  local print = {}
  for i, id in ipairs(ids) do
    local record = job(id)
    seen[1][i] = record
    print[i] = revision(record)
    if record and key == '' then key = key_of(record) end
  end
  if depth > 0 and key ~= '' then
    seen[2] = redis.call('HGET', held, key)
    seen[3] = job(seen[2])
    seen[4] = redis.call('HGET', next, key)
    seen[5] = job(seen[4])
    print[#print + 1] = framed(seen[2]) .. revision(seen[3]) .. framed(seen[4]) .. revision(seen[5])
    if depth > 1 then
      seen[6] = redis.call('HGET', marks, key)
      seen[7] = job(seen[6] and string.sub(seen[6], 2, 1 + string.byte(seen[6], 1)))
      print[#print + 1] = framed(seen[6])
    end
  end
  return seen, table.concat(print)
end

local at = 2
local function word()
  at = at + 1
  return ARGV[at]
end

local function words()
  local found = {}
  for i = 1, tonumber(word()) do found[i] = word() end
  return found
end

local function any_there(ids)
  for _, id in ipairs(ids) do
    if redis.call('HEXISTS', jobs, id) == 1 then return true end
  end
  return false
end

local function any_full(limits)
  for i = 1, #limits, 3 do
    local number = tonumber(redis.call('HGET', active, limits[i]) or 0)
    if number + tonumber(limits[i + 2]) > tonumber(limits[i + 1]) then return true end
  end
  return false
end

local function commands(write)
  for _ = 1, tonumber(word()) do
    local last = tonumber(word()) + at
    if write then redis.call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, last)) end
    at = last
  end
end

local answers, ring = {}, false
while at < #ARGV do
  local seen, print = look(words(), word(), tonumber(word()))
  local expected, fresh, limits = word(), words(), words()
  local answer = 1
  if any_there(fresh) then
    answer = 2
  elseif print ~= expected then
    answer = seen
  elseif any_full(limits) then
    answer = 3
  end
  commands(answer == 1)
  ring = (word() == '1' and answer == 1) or ring
  answers[#answers + 1] = answer
end
if ring then redis.call('PUBLISH', ARGV[1], ARGV[2]) end
return answers
