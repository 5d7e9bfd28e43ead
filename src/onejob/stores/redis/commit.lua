-- Write what each group decided if the rows that it has seen are unchanged; otherwise return the current rows.
--
-- KEYS     jobs, held, next, marks, counts, then every other key that is written or checked
-- ARGV     channel, message, grows ('1' if a full memory refuses this), deadline in microseconds ('' for none), number of
--          turns; of each turn: the numbers of its key and of the key that says that it is wanted, and its owner; then
--          the groups, each as
--            key ('' for none), depth (which rows were seen: 0 the jobs, 1 also holder and successor, 2 also the mark),
--            expected (the revisions and ids seen, '?' to only read), limited ('1' if it needs the turns),
--            wakes ('1' to publish the message), number of ids, ids,
--            number of counters, then name and difference of each,
--            number of writes, then command, number of the key, and words of each; COUNT, which adds one to a counter
--            of absorbed requests, has its name and time, and the keys of the last and first times follow its key
-- Returns  per group: 1 (written), 2 (refused: the turn is over), or the rows {records of the ids, holder, its record,
--          successor, its record, mark, record of the job that the mark names}
--
-- Groups share no job and no key. Removals come first: after the first write of a script a full memory refuses none.

local call, sub, min, unpack, ARGV = redis.call, string.sub, math.min, unpack, ARGV
local jobs, held, next, marks, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, message, grows, deadline, number_of_turns = unpack(ARGV, 1, 5)
local REVISION, KEY, AT_ONCE = 10, 20, 1000
local WORDS = {HSET = 2, HDEL = 1, ZADD = 2, ZREM = 1, COUNT = 2}

-- ── turns ──

local turns, at = {}, 6
for i = 1, tonumber(number_of_turns) do
  turns[i] = {key = KEYS[tonumber(ARGV[at])], wanted = KEYS[tonumber(ARGV[at + 1])], owner = ARGV[at + 2]}
  at = at + 3
end

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
  if depth > 0 and key ~= '' then
    local n = #ids
    local holder, successor = call('HGET', held, key), call('HGET', next, key)
    seen[n + 1], seen[n + 2] = holder or '-', revision(holder and call('HGET', jobs, holder))
    seen[n + 3], seen[n + 4] = successor or '-', revision(successor and call('HGET', jobs, successor))
    if depth > 1 then seen[n + 5] = call('HGET', marks, key) or '-' end
  end
  return table.concat(seen, ' ')
end

local function key_of(record)
  return record and sub(record, KEY, (string.find(record, ':', KEY, true) or KEY) - 1) or ''
end

local function rows(key, ids)
  local records = {}
  for i, id in ipairs(ids) do records[i] = call('HGET', jobs, id) end
  if key == '' then key = key_of(records[1]) end
  if key == '' then return {records, false, false, false, false, false, false} end
  local holder, successor, mark = call('HGET', held, key), call('HGET', next, key), call('HGET', marks, key)
  return {
    records,
    holder, holder and call('HGET', jobs, holder),
    successor, successor and call('HGET', jobs, successor),
    mark, mark and call('HGET', jobs, string.match(mark, '^[^:]*')),
  }
end

-- ── groups ──

local removals, additions, lists, sums, absorbed, wake = {}, {}, {}, {}, {}, false

local function list_of(command, number)
  local name = command .. number
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
    local order = WORDS[command] == 1 and removals or additions
    order[#order + 1] = {command, KEYS[tonumber(number)], list}
  end
  return list
end

local function read_words(number)
  local words = {}
  for i = 1, number do words[i] = ARGV[at + i - 1] end
  at = at + number
  return words
end

local function add_counts(accepted)
  local last = at + 2 * tonumber(ARGV[at])
  if accepted then
    for i = at + 1, last, 2 do sums[ARGV[i]] = (sums[ARGV[i]] or 0) + ARGV[i + 1] end
  end
  at = last + 1
end

local function add_writes(accepted)
  local left = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, left do
    local command = ARGV[at]
    local words = WORDS[command]
    if accepted and command == 'COUNT' then
      absorbed[#absorbed + 1] = {tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]}
    elseif accepted then
      local list = list_of(command, ARGV[at + 1])
      list[#list + 1] = ARGV[at + 2]
      if words == 2 then list[#list + 1] = ARGV[at + 3] end
    end
    at = at + 2 + words
  end
end

local answers = {}
while at <= #ARGV do
  local key, depth, expected, limited, wakes, number_of_ids = unpack(ARGV, at, at + 5)
  at = at + 6
  local ids = read_words(tonumber(number_of_ids))
  local answer = 1
  if limited == '1' and over then
    answer = 2
  elseif expected == '?' or compare(key, tonumber(depth), ids) ~= expected then
    answer = rows(key, ids)
  end
  add_counts(answer == 1)
  add_writes(answer == 1)
  wake = wake or (answer == 1 and wakes == '1')
  answers[#answers + 1] = answer
end

-- ── writes ──

local function write(order)
  for _, one in ipairs(order) do
    local command, key, words = one[1], one[2], one[3]
    for first = 1, #words, AT_ONCE do
      call(command, key, unpack(words, first, min(first + AT_ONCE - 1, #words)))
    end
  end
end

if grows ~= '1' and #additions > 0 then call('HDEL', jobs, '') end
write(removals)
write(additions)
for name, difference in pairs(sums) do
  if difference ~= 0 and call('HINCRBY', counts, name, difference) == 0 then call('HDEL', counts, name) end
end
for _, one in ipairs(absorbed) do
  local number, name, time = unpack(one)
  local lasts, firsts = KEYS[number + 1], KEYS[number + 2]
  call('HINCRBY', KEYS[number], name, 1)
  if tonumber(time) > tonumber(call('HGET', lasts, name) or 0) then call('HSET', lasts, name, time) end
  if tonumber(time) < tonumber(call('HGET', firsts, name) or math.huge) then call('HSET', firsts, name, time) end
end
if wake then call('PUBLISH', channel, message) end
for _, turn in ipairs(turns) do
  if call('GET', turn.key) == turn.owner then
    call('DEL', turn.key)
    if call('DEL', turn.wanted) == 1 then call('PUBLISH', channel, '') end -- without a sender: this process waits too
  end
end
return answers
