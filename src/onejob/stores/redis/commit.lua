-- Write what each group decided if the rows that it has seen are unchanged; otherwise return the current rows.
--
-- KEYS     jobs, held, next, marks, counts, then every other key that is written or checked
-- ARGV     channel, message, grows ('1' if a full memory refuses this), deadline in microseconds ('' for none), turns (a JSON
--          list of {number of its key, number of the key that says that it is wanted, owner}); then of each group
--            a JSON object, in which what is absent is empty:
--              key, depth (which rows were seen: 0 the jobs, 1 also holder and successor, 2 also the mark), ids,
--              limited (whether it needs the turns), wakes (whether to publish the message),
--              counts {name: difference}, records (ids of the jobs that are written), and flat lists of writes:
--              hdel {number of a key, field, …}, hset {number, field, value, …}, zrem {number, member, …},
--              zadd {number, score, member, …}, absorbed {number of a hash of counters, numbers of the hashes of their
--              last and first times, number of the list of counters by job, counter to which one is added, time, …}
--            expected: the revisions and ids seen, '?' to only read
--            a record for each of `records`
-- Returns  per group: 1 (written), 2 (refused: the turn is over), or the rows {records of the ids, holder, its record,
--          successor, its record, mark, record of the job that the mark names}
--
-- Groups share no job and no key. Removals come first: after the first write of a script a full memory refuses none.

local call, sub, min, unpack, ARGV, decode = redis.call, string.sub, math.min, unpack, ARGV, cjson.decode
local jobs, held, next, marks, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, message, grows, deadline, turns = unpack(ARGV, 1, 5)
local FIXED_ARGS, REVISION, KEY, AT_ONCE, NONE = 5, 10, 20, 1000, {}

-- ── turns ──

turns = decode(turns)
for i, turn in ipairs(turns) do turns[i] = {key = KEYS[turn[1]], wanted = KEYS[turn[2]], owner = turn[3]} end

local function is_over()
  if deadline ~= '' then
    local time = call('TIME')
    return time[1] * 1000000 + time[2] > tonumber(deadline)
  end
  for _, turn in ipairs(turns) do
    if call('GET', turn.key) ~= turn.owner then return true end
  end
  return false
end

local over = is_over()

-- ── rows ──

local function revision(record)
  return record and sub(record, 1, REVISION) or '-'
end

local function compare(key, depth, ids)
  local seen = {}
  for i, id in ipairs(ids) do seen[i] = revision(call('HGET', jobs, id)) end
  if depth > 0 and key then
    local n = #ids
    local holder, successor = call('HGET', held, key), call('HGET', next, key)
    seen[n + 1], seen[n + 2] = holder or '-', revision(holder and call('HGET', jobs, holder))
    seen[n + 3], seen[n + 4] = successor or '-', revision(successor and call('HGET', jobs, successor))
    if depth > 1 then seen[n + 5] = call('HGET', marks, key) or '-' end
  end
  return table.concat(seen, ' ')
end

local function key_of(record)
  local key = record and sub(record, KEY, (string.find(record, ':', KEY, true) or KEY) - 1)
  return key ~= '' and key
end

local function rows(key, ids)
  local records = {}
  for i, id in ipairs(ids) do records[i] = call('HGET', jobs, id) end
  key = key or key_of(records[1])
  if not key then return {records, false, false, false, false, false, false} end
  local holder, successor, mark = call('HGET', held, key), call('HGET', next, key), call('HGET', marks, key)
  return {
    records,
    holder, holder and call('HGET', jobs, holder),
    successor, successor and call('HGET', jobs, successor),
    mark, mark and call('HGET', jobs, string.match(mark, '^[^:]*')),
  }
end

-- ── groups ──

local hdel, hset, zrem, zadd, sums, absorbed, accepted, wake = {}, {}, {}, {}, {}, {}, false, false

-- Append writes, of so many words each, to lists by key.
local function append(lists, words, writes)
  for i = 1, #writes, words + 1 do
    local list = lists[writes[i]]
    if not list then
      list = {}
      lists[writes[i]] = list
    end
    for j = i + 1, i + words do list[#list + 1] = writes[j] end
  end
end

local function accept(group, first_record)
  for i, id in ipairs(group.records or NONE) do append(hset, 2, {1, id, ARGV[first_record + i]}) end
  append(hdel, 1, group.hdel or NONE)
  append(hset, 2, group.hset or NONE)
  append(zrem, 1, group.zrem or NONE)
  append(zadd, 2, group.zadd or NONE)
  for name, difference in pairs(group.counts or NONE) do sums[name] = (sums[name] or 0) + difference end
  accepted, wake = true, wake or group.wakes
  for _, word in ipairs(group.absorbed or NONE) do absorbed[#absorbed + 1] = word end
end

local answers, at = {}, FIXED_ARGS + 1
while at <= #ARGV do
  local group, expected, ids = decode(ARGV[at]), ARGV[at + 1], nil
  ids = group.ids or NONE
  if group.limited and over then
    answers[#answers + 1] = 2
  elseif expected == '?' or compare(group.key, group.depth or 0, ids) ~= expected then
    answers[#answers + 1] = rows(group.key, ids)
  else
    accept(group, at + 1)
    answers[#answers + 1] = 1
  end
  at = at + 2 + #(group.records or NONE)
end

-- ── writes ──

local function write(command, lists)
  for number, words in pairs(lists) do
    for first = 1, #words, AT_ONCE do
      call(command, KEYS[number], unpack(words, first, min(first + AT_ONCE - 1, #words)))
    end
  end
end

if grows ~= '1' and accepted then call('HDEL', jobs, '') end
write('HDEL', hdel)
write('ZREM', zrem)
write('HSET', hset)
write('ZADD', zadd)
for name, difference in pairs(sums) do
  if difference ~= 0 and call('HINCRBY', counts, name, difference) == 0 then call('HDEL', counts, name) end
end
for i = 1, #absorbed, 6 do
  local number, lasts, firsts, by_job, name, time = unpack(absorbed, i, i + 5)
  lasts, firsts = KEYS[lasts], KEYS[firsts]
  if call('HINCRBY', KEYS[number], name, 1) == 1 then call('ZADD', KEYS[by_job], 0, decode(name)[3] .. ' ' .. name) end
  if time > tonumber(call('HGET', lasts, name) or 0) then call('HSET', lasts, name, time) end
  if time < tonumber(call('HGET', firsts, name) or math.huge) then call('HSET', firsts, name, time) end
end
if wake then call('PUBLISH', channel, message) end
for _, turn in ipairs(turns) do
  if call('GET', turn.key) == turn.owner then
    call('DEL', turn.key)
    if call('DEL', turn.wanted) == 1 then call('PUBLISH', channel, '') end -- without a sender: this process waits too
  end
end
return answers
