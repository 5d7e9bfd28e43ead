-- Write what was decided, if what it was decided on is still so; else show what is there now.
--
-- KEYS     the bucket's six hashes, then the sorted sets that are written
-- ARGV     channel · what to say on it · "1" if this may have been sent before · number of counters · each as the
--          number of its key and its field · then one group after the other, each a step of its own, atomic by itself
--
-- A group: key, or "" · how much of it to show (0 nothing, 1 who stands for it, 2 its mark too) · what is expected,
-- or "?" · number of ids to show · of ids that must be new · of words about limits · of words about counters · of
-- words in commands · "1" to ring · and then these: ids · new ids · limits, each as counter (0 for the clock, less for
-- a set), limit and addition · counters, each with what to add · commands, each as the number of its words, name, number of its key
-- and words. Counters are written once, when all groups are done.
-- Answers: 1 written · 2 it was written before · 3 over the limit · or what is there.

local KEYS, ARGV, call, sub, byte = KEYS, ARGV, redis.call, string.sub, string.byte
local jobs, held, next, marks, active = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local HASHES, HEAD, FIRST = 6, 9, 5
local sums = {}

local function revision(record)
  return record and sub(record, 1, 8) or '-'
end

local function framed(text)
  return text and (#text .. ':' .. text) or '-'
end

local function key_of(record)
  return sub(record, 10, 9 + byte(record, 9))
end

local function look(first, last, key, depth)
  local shown, print = {}, ''
  for i = first, last do
    local record = call('HGET', jobs, ARGV[i])
    shown[#shown + 1] = record
    print = print .. revision(record)
    if record and key == '' then key = key_of(record) end
  end
  if depth == '0' or key == '' then return {shown, false, false, false, false, false, false}, print end

  local holder, successor = call('HGET', held, key), call('HGET', next, key)
  local held_by = holder and (holder == ARGV[first] and first == last and shown[1] or call('HGET', jobs, holder))
  local awaited_by = successor and call('HGET', jobs, successor)
  print = print .. framed(holder) .. revision(held_by) .. framed(successor) .. revision(awaited_by)
  if depth == '1' then return {shown, holder, held_by, successor, awaited_by, false, false}, print end

  local mark = call('HGET', marks, key)
  local marked = mark and call('HGET', jobs, sub(mark, 2, 1 + byte(mark, 1)))
  return {shown, holder, held_by, successor, awaited_by, mark, marked}, print .. framed(mark)
end

local function any_there(first, last)
  for i = first, last do
    if call('HEXISTS', jobs, ARGV[i]) == 1 then return true end
  end
  return false
end

local function any_full(first, last)
  for i = first, last, 3 do
    local counter, most = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
    if counter < 0 then -- a set of starts, of which the old ones have just been forgotten
      if call('ZCARD', KEYS[-counter]) + ARGV[i + 2] > most then return true end
    elseif counter == 0 then -- the turn to start jobs of limited queues ends
      local now = call('TIME')
      if now[1] * 1000000 + now[2] > most then return true end
    else
      local number = (call('HGET', active, ARGV[FIRST + 2 * counter - 1]) or 0) + (sums[counter] or 0)
      if number + ARGV[i + 2] > most then return true end
    end
  end
  return false
end

-- A command that fails would leave those before it written, so the types are checked before the first one. Hashes
-- that every group reads need no check: reading fails as well.
local function foreign()
  for i = HASHES - 1, #KEYS do
    local kind = call('TYPE', KEYS[i]).ok
    if kind ~= 'none' and kind ~= (i <= HASHES and 'hash' or 'zset') then
      return redis.error_reply('FOREIGN ' .. KEYS[i] .. ' is a ' .. kind)
    end
  end
end

local function write(at, last)
  while at <= last do
    local after = at + ARGV[at]
    call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, after))
    at = after + 1
  end
end

local function count(first, last)
  for i = first, last, 2 do
    local counter = tonumber(ARGV[i])
    sums[counter] = (sums[counter] or 0) + ARGV[i + 1]
  end
end

local answers, checked, ring, sent_before, size = {}, false, false, ARGV[3] == '1', #ARGV
local at = FIRST + 2 * ARGV[4]
while at <= size do
  local ids = at + HEAD
  local fresh = ids + ARGV[at + 3]
  local limits = fresh + ARGV[at + 4]
  local counters = limits + ARGV[at + 5]
  local commands = counters + ARGV[at + 6]
  local ends = commands + ARGV[at + 7]
  local seen, print = look(ids, fresh - 1, ARGV[at], ARGV[at + 1])
  if sent_before and any_there(fresh, limits - 1) then
    answers[#answers + 1] = 2
  elseif print ~= ARGV[at + 2] then
    answers[#answers + 1] = seen
  elseif limits < counters and any_full(limits, counters - 1) then
    answers[#answers + 1] = 3
  else
    if not checked then
      local refusal = foreign()
      if refusal then return refusal end
      checked = true
    end
    write(commands, ends - 1)
    count(counters, commands - 1)
    ring = ring or ARGV[at + 8] == '1'
    answers[#answers + 1] = 1
  end
  at = ends
end
for counter, number in pairs(sums) do
  local first = FIRST + 2 * (counter - 1)
  local key, field = tonumber(ARGV[first]), ARGV[first + 1]
  if number ~= 0 and call('HINCRBY', KEYS[key], field, number) == 0 then call('HDEL', KEYS[key], field) end
end
if ring then call('PUBLISH', ARGV[1], ARGV[2]) end
return answers
