-- Supply the best available jobs: of queues without limits, set them aside; of limited queues, grant the turn to start.
--
-- KEYS     jobs, held, next, marks, counts, timed, paused; then per queue: its turn, the key that says that the turn is
--          wanted and its recent starts, if it takes turns; and per task its due jobs, and, if it has a share, the same by
--          partition
-- ARGV     as named below; then per queue: name, active (name of the counter), room (jobs that may start), takes_turns
--          ('1' if so), limit (of active jobs), share (of active jobs of one partition), times (starts since `since`), since,
--          number of tasks, number of partitions whose active jobs are known, then partition and number of each
-- Returns  {earliest run time of a timed job, records of jobs whose time has come, limited queues, candidates}
--            limited queue: {name, turn ('granted', 'taken' by another worker, '' if nothing can start), active jobs,
--                            starts, partition, its active jobs, …}
--            candidate: {number of its set in KEYS, member, record, and if a step needs them: holder, its record,
--                        successor, its record, mark}
--
-- A job that is set aside stays in its set, with the time when that lapses as its score; free jobs have score 0.

local call, sub, min, unpack, KEYS, ARGV = redis.call, string.sub, math.min, unpack, KEYS, ARGV
local jobs, held, next, marks, counts, timed, paused = unpack(KEYS, 1, 7)
local now, lapses, total, ripen, owner, turn_length, first_partition = unpack(ARGV, 1, 7)
local FIXED_KEYS, FIXED_ARGS, RANK, PARTITION, WRITE, KEY, AT_ONCE = 7, 7, 58, 32, 19, 20, 1000
local NO_PARTITION = string.rep('0', PARTITION)
local WALKED, VISITED = 1000, 200 -- members and partitions that are looked at: the server does nothing else meanwhile
total = tonumber(total)

call('ZREM', timed, '') -- removes nothing; after the first write of a script a full memory refuses none

local function append(all, some)
  for i = 1, #some do all[#all + 1] = some[i] end
end

local function fetch(name, fields)
  local found = {}
  for first = 1, #fields, AT_ONCE do
    append(found, call('HMGET', name, unpack(fields, first, min(first + AT_ONCE - 1, #fields))))
  end
  return found
end

local earliest = call('ZRANGE', timed, 0, 0, 'WITHSCORES')[2] or false
local ripe = {}
if earliest and tonumber(earliest) <= tonumber(now) and ripen ~= '0' then
  local ids = call('ZRANGEBYSCORE', timed, '-inf', now, 'LIMIT', 0, ripen)
  for i, record in ipairs(fetch(jobs, ids)) do ripe[i] = {ids[i], record} end
  return {earliest, ripe, {}, {}}
end

-- ── queues ──

local function by_rank(a, b)
  return a.member < b.member -- digits, which sort alike in every locale
end

local function cut(found, room)
  for i = #found, room + 1, -1 do found[i] = nil end
  return found
end

local function best(sets, room)
  local found, sources = {}, 0
  for _, set in ipairs(sets) do
    for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[set.due], '(0', now)) do call('ZADD', KEYS[set.due], 0, member) end
    local members = call('ZRANGEBYSCORE', KEYS[set.due], 0, 0, 'LIMIT', 0, room)
    if #members > 0 then sources = sources + 1 end
    for _, member in ipairs(members) do found[#found + 1] = {set = set.due, member = member} end
  end
  if sources > 1 then table.sort(found, by_rank) end
  return cut(found, room)
end

-- Of a queue with shares: walk the jobs in their order, passing over partitions without room; if that is a long way,
-- look at the head of each partition as well.
local function shared(sets, room, queue)
  local left, found, long = {}, {}, false

  local function room_of(partition)
    if partition == '' or partition == NO_PARTITION then return room end
    if not left[partition] then
      local active = queue.known[partition]
      if not active then
        active = tonumber(call('HGET', counts, sub(queue.active, 1, -2) .. ',"' .. partition .. '"]') or 0)
        queue.known[partition] = active
      end
      left[partition] = queue.share - active
    end
    return left[partition]
  end

  local function take(set, member)
    local partition = sub(string.match(member, ':%x+$') or '', 2)
    if room_of(partition) < 1 then return 0 end
    if left[partition] then left[partition] = left[partition] - 1 end
    found[#found + 1] = {set = set.due, member = member}
    return 1
  end

  local function walk(set)
    local before, taken, from = left, 0, 0
    left = {} -- each set alone: the best over all sets are among the best of each
    while taken < room do
      local members = call('ZRANGE', KEYS[set.due], from, from + 99)
      for _, member in ipairs(members) do
        if taken < room then taken = taken + take(set, member) end
      end
      from = from + #members
      if #members < 100 or from >= WALKED then long = long or (#members == 100 and taken < room) break end
    end
    left = before
  end

  local function head(set, partition)
    local most = min(room, room_of(partition))
    if most < 1 then return end
    local first, last = '[' .. partition, '(' .. partition .. ';'
    for _, one in ipairs(call('ZRANGEBYLEX', KEYS[set.shared], first, last, 'LIMIT', 0, most)) do
      found[#found + 1] = {set = set.due, member = sub(one, PARTITION + 1) .. ':' .. partition}
    end
  end

  local function heads(set)
    local visited = 0
    head(set, NO_PARTITION)
    for _, range in ipairs({{'[' .. first_partition, '+'}, {'-', '(' .. first_partition}}) do
      local from = range[1]
      while visited < VISITED do
        local member = call('ZRANGEBYLEX', KEYS[set.shared], from, range[2], 'LIMIT', 0, 1)[1]
        if not member then break end
        local partition = sub(member, 1, PARTITION)
        head(set, partition)
        from, visited = '(' .. partition .. ';', visited + 1
      end
    end
  end

  for _, set in ipairs(sets) do walk(set) end
  if long then
    for _, set in ipairs(sets) do heads(set) end
  end
  return found
end

local limited, candidates, sources, chooses, key, at = {}, {}, 0, false, FIXED_KEYS + 1, FIXED_ARGS + 1

local function read_queue()
  local queue, number_of_tasks, number_known = {known = {}, sets = {}}, nil, nil
  queue.name, queue.active, queue.room, queue.takes_turns, queue.limit = unpack(ARGV, at, at + 4)
  queue.share, queue.times, queue.since, number_of_tasks, number_known = unpack(ARGV, at + 5, at + 9)
  at = at + 10
  for _ = 1, tonumber(number_known) do
    queue.known[ARGV[at]] = tonumber(ARGV[at + 1])
    at = at + 2
  end
  queue.share = tonumber(queue.share)
  if queue.takes_turns == '1' then
    queue.turn, queue.wanted, queue.starts = KEYS[key], KEYS[key + 1], KEYS[key + 2]
    key = key + 3
  end
  for i = 1, tonumber(number_of_tasks) do
    queue.sets[i] = {due = key, shared = queue.share and key + 1}
    key = key + (queue.share and 2 or 1)
  end
  return queue
end

-- Grant the turn only if there is capacity and a candidate, so that no worker keeps it in vain.
local function limited_queue(queue, room)
  local active = tonumber(call('HGET', counts, queue.active) or 0)
  local starts, turn, found = {}, '', {}
  if queue.limit ~= '' then room = min(room, queue.limit - active) end
  if queue.times ~= '' then
    call('ZREMRANGEBYSCORE', queue.starts, '-inf', queue.since)
    local pairs_of = call('ZRANGE', queue.starts, 0, -1, 'WITHSCORES')
    for i = 2, #pairs_of, 2 do starts[i / 2] = pairs_of[i] end
    room = min(room, queue.times - #starts)
  end
  if room > 0 then found = queue.share and shared(queue.sets, room, queue) or best(queue.sets, room) end
  if #found > 0 then
    if call('SET', queue.turn, owner, 'NX', 'PX', turn_length) then
      turn = 'granted'
    else
      call('SET', queue.wanted, '1', 'PX', turn_length)
      found, turn = {}, 'taken'
    end
  end
  local info = {queue.name, turn, active, starts}
  for partition, number in pairs(queue.known) do append(info, {partition, number}) end
  limited[#limited + 1] = info
  return found
end

while at <= #ARGV do
  local queue = read_queue()
  local room = call('HEXISTS', paused, queue.name) == 1 and 0 or min(total, tonumber(queue.room))
  local found = {}
  if queue.takes_turns == '1' then
    found = limited_queue(queue, room)
    for _, one in ipairs(found) do one.limited = true end
  elseif room > 0 then
    found = queue.share and shared(queue.sets, room, queue) or best(queue.sets, room)
  end
  sources = sources + (#found > 0 and #queue.sets or 0)
  chooses = chooses or queue.share or queue.takes_turns == '1'
  append(candidates, found)
end

-- ── candidates ──

if not chooses then -- the caller chooses among those of limited queues, and may pass over some
  if sources > 1 then table.sort(candidates, by_rank) end
  cut(candidates, total)
end

local ids, aside, answers = {}, {}, {}
for i, one in ipairs(candidates) do
  ids[i] = string.match(one.member, '^[^:]*', RANK + 1)
  if lapses ~= '' and not one.limited then
    local list = aside[one.set] or {}
    aside[one.set] = list
    list[#list + 1] = lapses
    list[#list + 1] = one.member
  end
end
for set, list in pairs(aside) do
  for first = 1, #list, AT_ONCE do call('ZADD', KEYS[set], unpack(list, first, min(first + AT_ONCE - 1, #list))) end
end

for i, record in ipairs(fetch(jobs, ids)) do
  local answer = {candidates[i].set, candidates[i].member, record}
  if record and sub(record, WRITE, WRITE) == '+' then
    local name = sub(record, KEY, string.find(record, ':', KEY, true) - 1)
    local holder, successor = call('HGET', held, name), call('HGET', next, name)
    answer[4], answer[5] = holder, holder and holder ~= ids[i] and call('HGET', jobs, holder)
    answer[6], answer[7], answer[8] = successor, successor and call('HGET', jobs, successor), call('HGET', marks, name)
  end
  answers[i] = answer
end
return {earliest, ripe, limited, answers}
