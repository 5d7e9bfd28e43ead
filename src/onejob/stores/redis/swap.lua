-- Write what was decided, if what it was decided on is still so; else show what is there now.
--
-- KEYS     the bucket's six hashes, then the sorted sets that are written
-- ARGV[1]  "1" if this may have been sent before
-- ARGV[2]  the plan, as msgpack: channel · what to say on it · lists, each as command, number of its key and of the
--          words of one entry · counters, each as the number of its key · groups, each a step of its own, atomic by
--          itself · the length of every word
-- ARGV[3]  the words: the fields of the counters, then those of one group after the other
--
-- A group: number of its words · how much of its key to show (0 nothing, 1 who stands for it, 2 its mark too) ·
-- number of ids to show · of ids that must be new · limits, each as counter (0 for the clock, less for a list of
-- starts), limit and addition · counters, each with what to add · the list of each entry that is written · 1 to ring.
-- Its words: key, or "" · what is expected, or "?" · ids · new ids · entries.
-- Groups have no job and no key in common, so all is read before and written after they are judged: few commands.
-- Answers: 1 written · 2 it was written before · 3 over the limit · or what is there.

local KEYS, call, sub, byte, unpack = KEYS, redis.call, string.sub, string.byte, unpack
local jobs, held, next, marks, active = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local HASHES, HEAD, CHUNK = 6, 3, 1000 -- CHUNK is what a command takes at once
local channel, voice, lists, counters, groups, lengths = unpack(cmsgpack.unpack(ARGV[2]))
local sent_before, text, sums = ARGV[1] == '1', ARGV[3], {}

local words, from = {}, 1
for i = 1, #lengths do
  local after = from + lengths[i]
  words[i] = sub(text, from, after - 1)
  from = after
end

-- ── reading ──

local ids, keys, marked = {}, {}, {}
local at = #counters
for i = 1, #groups do
  local group = groups[i]
  local key, depth = words[at + 1], group[2]
  for j = at + 3, at + 2 + group[3] do ids[#ids + 1] = words[j] end
  if depth > 0 and key ~= '' then keys[#keys + 1] = key end
  if depth > 1 and key ~= '' then marked[#marked + 1] = key end
  at = at + group[1]
end

local function fetch(number, fields)
  if #fields <= CHUNK then return #fields > 0 and call('HMGET', KEYS[number], unpack(fields)) or {} end
  local found = {}
  for first = 1, #fields, CHUNK do
    local some = call('HMGET', KEYS[number], unpack(fields, first, math.min(first + CHUNK - 1, #fields)))
    for i = 1, #some do found[#found + 1] = some[i] end
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

local function look(key, depth, first, number)
  local shown, print = {}, ''
  for i = 1, number do
    shown[i] = records[nth_id + i]
    print = print .. revision(shown[i])
  end
  nth_id = nth_id + number
  if depth == 0 then return {shown, false, false, false, false, false, false}, print end

  local holder, successor, mark = pointers(key, depth, shown)
  if key == '' and not (holder or successor or mark) then
    return {shown, false, false, false, false, false, false}, print
  end
  local held_by = holder and (number == 1 and holder == words[first] and shown[1] or call('HGET', jobs, holder))
  local awaited_by = successor and call('HGET', jobs, successor)
  print = print .. framed(holder) .. revision(held_by) .. framed(successor) .. revision(awaited_by)
  if depth > 1 then print = print .. framed(mark) end
  return {shown, holder, held_by, successor, awaited_by, mark, false}, print
end

local function with_marked(seen)
  local mark = seen[6]
  if mark then seen[7] = call('HGET', jobs, sub(mark, 2, 1 + byte(mark, 1))) end
  return seen
end

-- ── judging ──

local function any_there(first, last)
  for i = first, last do
    if call('HEXISTS', jobs, words[i]) == 1 then return true end
  end
  return false
end

local function any_full(limits)
  for i = 1, #limits, 3 do
    local counter, most, more = limits[i], limits[i + 1], limits[i + 2]
    if counter < 0 then -- a list of starts, of which the old ones have just been forgotten
      local starts = lists[-counter]
      more = more + call('ZCARD', KEYS[starts[2]]) + (#starts - HEAD) / starts[3]
    elseif counter == 0 then -- the turn to start jobs of limited queues ends
      local now = call('TIME')
      more = now[1] * 1000000 + now[2]
    else
      more = more + (call('HGET', active, words[counter]) or 0) + (sums[counter] or 0)
    end
    if more > most then return true end
  end
  return false
end

local function gather(writes, first)
  for i = 1, #writes do
    local list = lists[writes[i]]
    for _ = 1, list[3] do
      list[#list + 1] = words[first]
      first = first + 1
    end
  end
end

local function count(changes)
  for i = 1, #changes, 2 do
    local counter = changes[i]
    sums[counter] = (sums[counter] or 0) + changes[i + 1]
  end
end

local answers, ring = {}, false
at = #counters
for i = 1, #groups do
  local number, depth, shown, new, limits, changes, writes, rings = unpack(groups[i])
  local first = at + 3
  local fresh = first + shown
  local entries = fresh + new
  local seen, print = look(words[at + 1], depth, first, shown)
  if sent_before and any_there(fresh, entries - 1) then
    answers[i] = 2
  elseif print ~= words[at + 2] then
    answers[i] = with_marked(seen)
  elseif #limits > 0 and any_full(limits) then
    answers[i] = 3
  else
    gather(writes, entries)
    count(changes)
    ring = ring or rings == 1
    answers[i] = 1
  end
  at = at + number
end

-- ── writing ──

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
  local refusal = foreign(counters[counter])
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
  local number, field = counters[counter], words[counter]
  if sum ~= 0 and call('HINCRBY', KEYS[number], field, sum) == 0 then call('HDEL', KEYS[number], field) end
end
if ring then call('PUBLISH', channel, voice) end
return answers
