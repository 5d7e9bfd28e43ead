-- Write what was decided, if what it was decided on is still so; else show what is there now.
--
-- KEYS     the bucket's six hashes, then the sorted sets that are written
-- ARGV[1]  "1" if this may have been sent before, ARGV[2]  channel, ARGV[3]  what to say on it
-- ARGV[4]  numbers of four bytes, in runs, each after how many they are: a head, then groups, each a step of its own,
--          atomic by itself
-- ARGV[5]  words, in the order in which the runs give their lengths
--
-- The head: number of lists · each as number of its command and of its key · number of counters · the key of each ·
-- the length of the field of each.
-- A group: number of words · how much of its key to show (0 nothing, 1 who stands for it, 2 its mark too) · number of
-- ids to show · of ids that must be new · of limits · 1 to ring · number of counters · each with what to add · the list
-- of each entry that is written · the length of each word.
-- Its words: key, or "" · what is expected, or "?" · ids · new ids · limits, each as counter (0 for the clock, less for
-- a list of starts), limit and addition, or as "paused", the number of a key, and the queue that must not be in that hash ·
-- entries.
-- Groups have no job and no key in common, so all is read before and written after they are judged: few commands.
-- Answers: 1 written · 2 it was written before · 3 over the limit · or what is there.

local KEYS, call, sub, byte, unpack, numbers_of = KEYS, redis.call, string.sub, string.byte, unpack, struct.unpack
local jobs, held, next, marks, active = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sent_before, plan, text = ARGV[1] == '1', ARGV[4], ARGV[5]
local COMMANDS, WIDTHS = {'HSET', 'HDEL', 'ZADD', 'ZREM'}, {2, 1, 2, 1} -- words of one entry
local HASHES, HEAD, CHUNK = 6, 3, 1000 -- CHUNK is what is taken at once
local GROUP = 7 -- numbers that every group has

-- ── what we are told ──

local at, from = 1, 1 -- in the plan, in the text

local function append(all, some, number)
  for i = 1, number do all[#all + 1] = some[i] end
end

local function run()
  local left, found = numbers_of('<i4', plan, at), {}
  at = at + 4
  while left > 0 do
    local number = math.min(left, CHUNK)
    local some = {numbers_of('<' .. string.rep('i4', number), plan, at)} -- and where it ended
    at, left = some[number + 1], left - number
    if left == 0 and #found == 0 then return some, number end
    append(found, some, number)
  end
  return found, #found
end

local function words_of(numbers, first, last)
  local words = {}
  for i = first, last do
    local after = from + numbers[i]
    words[i - first + 1] = sub(text, from, after - 1)
    from = after
  end
  return words
end

local head, size = run()
local lists, counters = {}, 2 + 2 * head[1]
for i = 2, 2 * head[1], 2 do lists[i / 2] = {COMMANDS[head[i]], head[i + 1], WIDTHS[head[i]]} end
local fields = words_of(head, counters + 1 + head[counters], size)

local groups, ids, keys, marked = {}, {}, {}, {}
while at <= #plan do
  local group, last = run()
  local words = words_of(group, last - group[1] + 1, last)
  local key, depth = words[1], group[2]
  group.words, group.last = words, last - group[1]
  groups[#groups + 1] = group
  for i = 3, 2 + group[3] do ids[#ids + 1] = words[i] end
  if depth > 0 and key ~= '' then keys[#keys + 1] = key end
  if depth > 1 and key ~= '' then marked[#marked + 1] = key end
end

-- ── what is there ──

local function fetch(number, wanted)
  if #wanted <= CHUNK then return #wanted > 0 and call('HMGET', KEYS[number], unpack(wanted)) or {} end
  local found = {}
  for first = 1, #wanted, CHUNK do
    local some = call('HMGET', KEYS[number], unpack(wanted, first, math.min(first + CHUNK - 1, #wanted)))
    append(found, some, #some)
  end
  return found
end

local records, holders, successors, seals = fetch(1, ids), fetch(2, keys), fetch(3, keys), fetch(4, marked)
local nth_id, nth_key, nth_mark = 0, 0, 0

local function revision(record)
  return record and sub(record, 1, 8) or '-'
end

local function framed(word)
  return word and (#word .. ':' .. word) or '-'
end

local function pointers(key, depth, shown)
  if key ~= '' then
    nth_key = nth_key + 1
    if depth < 2 then return holders[nth_key], successors[nth_key], false end
    nth_mark = nth_mark + 1
    return holders[nth_key], successors[nth_key], seals[nth_mark]
  end
  for _, record in ipairs(shown) do
    if record and byte(record, 9) > 0 then
      key = sub(record, 10, 9 + byte(record, 9))
      return call('HGET', held, key), call('HGET', next, key), depth > 1 and call('HGET', marks, key)
    end
  end
  return false, false, false
end

local function look(words, depth, number)
  local shown, print = {}, ''
  for i = 1, number do
    shown[i] = records[nth_id + i]
    print = print .. revision(shown[i])
  end
  nth_id = nth_id + number
  if depth == 0 then return print, {shown, false, false, false, false, false, false} end

  local holder, successor, mark = pointers(words[1], depth, shown)
  if words[1] == '' and not (holder or successor or mark) then
    return print, {shown, false, false, false, false, false, false}
  end
  local held_by = holder and (number == 1 and holder == words[3] and shown[1] or call('HGET', jobs, holder))
  local awaited_by = successor and call('HGET', jobs, successor)
  print = print .. framed(holder) .. revision(held_by) .. framed(successor) .. revision(awaited_by)
  if depth > 1 then print = print .. framed(mark) end
  return print, {shown, holder, held_by, successor, awaited_by, mark, false}
end

local function with_marked(seen)
  local mark = seen[6]
  if mark then seen[7] = call('HGET', jobs, sub(mark, 2, 1 + byte(mark, 1))) end
  return seen
end

-- ── what may be ──

local sums = {}

local function any_there(words, first, last)
  for i = first, last do
    if call('HEXISTS', jobs, words[i]) == 1 then return true end
  end
  return false
end

local function any_full(words, first, last)
  for i = first, last, 3 do
    local counter, most, more = tonumber(words[i]), tonumber(words[i + 1]), tonumber(words[i + 2])
    if words[i] == 'paused' then
      counter, most, more = 0, 0, call('HEXISTS', KEYS[most], words[i + 2])
    elseif counter < 0 then -- a list of starts, of which the old ones have just been forgotten
      local starts = lists[-counter]
      more = more + call('ZCARD', KEYS[starts[2]]) + (#starts - HEAD) / starts[3]
    elseif counter == 0 then -- the turn to start jobs of limited queues ends
      local now = call('TIME')
      more = now[1] * 1000000 + now[2]
    else
      more = more + (call('HGET', active, fields[counter]) or 0) + (sums[counter] or 0)
    end
    if more > most then return true end
  end
  return false
end

local function gather(group, entries)
  local words, writes = group.words, GROUP + 1 + 2 * group[7]
  for i = GROUP + 1, writes - 1, 2 do
    local counter = group[i]
    sums[counter] = (sums[counter] or 0) + group[i + 1]
  end
  for i = writes, group.last do
    local list = lists[group[i]]
    local size = #list
    list[size + 1] = words[entries]
    if list[3] == 2 then list[size + 2] = words[entries + 1] end
    entries = entries + list[3]
  end
end

local answers, ring = {}, false
for i = 1, #groups do
  local group = groups[i]
  local words, fresh = group.words, 3 + group[3]
  local limits = fresh + group[4]
  local entries = limits + 3 * group[5]
  local print, seen = look(words, group[2], group[3])
  if sent_before and any_there(words, fresh, limits - 1) then
    answers[i] = 2
  elseif print ~= words[2] then
    answers[i] = with_marked(seen)
  elseif limits < entries and any_full(words, limits, entries - 1) then
    answers[i] = 3
  else
    gather(group, entries)
    ring = ring or group[6] == 1
    answers[i] = 1
  end
end

-- ── what is written ──

-- A command that fails would leave those before it written, so the types are checked before the first one. Hashes
-- that were read need no check: reading fails as well.
local known = {#ids > 0, #keys > 0, #keys > 0, #marked > 0}

local function foreign(number)
  if known[number] then return end
  known[number] = true
  local size = number <= HASHES and 'HLEN' or 'ZCARD'
  if type(redis.pcall(size, KEYS[number])) == 'number' then return end
  return redis.error_reply('FOREIGN ' .. KEYS[number] .. ' is a ' .. call('TYPE', KEYS[number]).ok)
end

for i = 1, #lists do
  local refusal = #lists[i] > HEAD and foreign(lists[i][2])
  if refusal then return refusal end
end
for counter in pairs(sums) do
  local refusal = foreign(head[counters + counter])
  if refusal then return refusal end
end

for i = 1, #lists do
  local list = lists[i]
  local command, number = list[1], list[2]
  for first = HEAD + 1, #list, CHUNK do
    call(command, KEYS[number], unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end
for counter, sum in pairs(sums) do
  local number, field = head[counters + counter], fields[counter]
  if sum ~= 0 and call('HINCRBY', KEYS[number], field, sum) == 0 then call('HDEL', KEYS[number], field) end
end
if ring then call('PUBLISH', ARGV[2], ARGV[3]) end
return answers
