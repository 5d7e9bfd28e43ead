-- Take the best available jobs aside for a moment, so that no two workers decide on the same ones.
--
-- KEYS     the bucket's six hashes, the set of timed jobs, the hash of paused queues; then per queue the set of its
--          starts if it has a rate, and per task the set of available jobs and, if it has shares, the same by partition
-- ARGV[1]  now, ARGV[2]  when a claim lapses, or "" to only look, ARGV[3]  how many in all, ARGV[4]  how many timed jobs at most
-- ARGV[5]  where to begin among partitions, ARGV[6…] per queue: its name · its counter · how many it may give · its limit, or "" · how many of one partition may
--          run, or "" · how many may start in a span of time, or "" · the time before which starts are forgotten · how
--          many tasks · how many partitions are known to run jobs in other buckets · each of these and how many
--
-- A claimed job stays in its set, with the end of the claim as its score: free ones have score 0.
-- Answers the jobs whose time has come, and, if there are none, the claimed ones, each with its set, its member
-- and who stands for its key.

local call, sub = redis.call, string.sub
local jobs, active = KEYS[1], KEYS[5]
local timed, paused = KEYS[7], KEYS[8]
local now, lapses, total, most, start = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local FIXED, RANK, PARTITION, PAST, CLAIMED, VISITED = 8, 24, 16, 30, 8, 200
local NOBODY = string.rep('\0', PARTITION)

local ripe = call('ZRANGEBYSCORE', timed, '-inf', now, 'LIMIT', 0, most)
if #ripe > 0 then return {ripe, {}} end

-- A member begins with 24 bytes that sort like the job's rank. The id follows, and, after a zero byte, the partition
-- if there is one.
local function ranked(set, member)
  local tail = string.find(member, '\0', RANK + 1, true)
  return {
    set = set,
    member = member,
    id = sub(member, RANK + 1, tail and tail - 1),
    partition = tail and sub(member, tail + 1),
  }
end

-- The rank as four numbers, because `<` on strings would follow the server's locale; most often nobody asks.
local function weigh(one)
  local bytes = {string.byte(one.member, 1, RANK)}
  for i = 1, 4 do
    local number = 0
    for j = 6 * i - 5, 6 * i do number = number * 256 + bytes[j] end
    one[i] = number
  end
end

local function before(a, b)
  if not a[1] then weigh(a) end
  if not b[1] then weigh(b) end
  for i = 1, 4 do
    if a[i] ~= b[i] then return a[i] < b[i] end
  end
  return a.member < b.member
end

local function best(found, room, sorted)
  if not sorted then table.sort(found, before) end
  for i = #found, math.max(room, 0) + 1, -1 do found[i] = nil end
  return found
end

local function available(set, room)
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[set], '(0', now)) do
    call('ZADD', KEYS[set], 0, member)
  end
  return call('ZRANGEBYSCORE', KEYS[set], 0, 0, 'LIMIT', 0, room)
end

-- ── a queue without shares: whoever is first in line ──

local function first_in_line(sets, room)
  local found, given = {}, 0
  for _, set in ipairs(sets) do
    local members = available(set, room)
    given = given + math.min(#members, 1)
    for _, member in ipairs(members) do found[#found + 1] = ranked(set, member) end
  end
  return best(found, room, given < 2), given
end

-- ── a queue with shares: whose partition has room ──

local function room_of(partition, queue)
  if not partition or partition == NOBODY then return math.huge end
  local taken = queue.elsewhere[partition] or call('HGET', active, queue.counter .. ':' .. partition) or 0
  return queue.share - taken
end

local function with_room(found, queue)
  table.sort(found, before)
  local left, kept = {}, {}
  for _, one in ipairs(found) do
    local partition = one.partition or NOBODY
    left[partition] = left[partition] or room_of(partition, queue)
    if left[partition] > 0 then
      left[partition] = left[partition] - 1
      kept[#kept + 1] = one
    end
  end
  return kept
end

local function head(set, partition, room, queue, found)
  local left, from, ends = math.min(room, room_of(partition, queue)), '[' .. partition, '(' .. partition .. '\255'
  if left <= 0 then return end
  for _, member in ipairs(call('ZRANGEBYLEX', KEYS[set + 1], from, ends, 'LIMIT', 0, left + CLAIMED)) do
    local standing = sub(member, PARTITION + 1) .. '\0' .. partition
    if left > 0 and call('ZSCORE', KEYS[set], standing) == '0' then
      found[#found + 1] = ranked(set, standing)
      left = left - 1
    end
  end
end

-- One look per partition, however long the lines of the crowded ones are. The server does nothing else meanwhile, so
-- only so many are visited, from another one on each time.
local function heads(set, room, queue, found)
  head(set, NOBODY, room, queue, found)
  local visited = 0
  for _, range in ipairs({{'(' .. start, '+'}, {'(' .. NOBODY .. '\255', '[' .. start}}) do
    local from = range[1]
    while visited < VISITED do
      local first = call('ZRANGEBYLEX', KEYS[set + 1], from, range[2], 'LIMIT', 0, 1)[1]
      if not first then break end
      local partition = sub(first, 1, PARTITION)
      head(set, partition, room, queue, found)
      from, visited = '(' .. partition .. '\255', visited + 1
    end
  end
end

local function fair_share(sets, room, queue)
  local ahead, found, long, edge = 2 * room + PAST, {}, {}, nil
  for _, set in ipairs(sets) do
    local members = available(set, ahead)
    for _, member in ipairs(members) do found[#found + 1] = ranked(set, member) end
    if #members == ahead then
      local last = found[#found]
      long[set] = true
      if not edge or before(last, edge) then edge = last end
    end
  end
  local kept = best(with_room(found, queue), room, true)
  if not edge or (#kept == room and not before(edge, kept[room])) then return kept end
  local rest = {}
  for _, one in ipairs(found) do
    if not long[one.set] or not one.partition then rest[#rest + 1] = one end
  end
  for set in pairs(long) do heads(set, room, queue, rest) end
  return best(with_room(rest, queue), room, true)
end

-- ── all queues ──

local chosen, key, sources, at = {}, FIXED, 0, 6
while at <= #ARGV do
  local room = call('HEXISTS', paused, ARGV[at]) == 1 and 0 or math.min(total, tonumber(ARGV[at + 2]))
  local queue = {counter = ARGV[at + 1], share = tonumber(ARGV[at + 4]), elsewhere = {}}
  local limit, times, forgotten = ARGV[at + 3], ARGV[at + 5], ARGV[at + 6]
  if limit ~= '' then room = math.min(room, limit - (call('HGET', active, queue.counter) or 0)) end
  if times ~= '' then
    key = key + 1
    call('ZREMRANGEBYSCORE', KEYS[key], '-inf', forgotten)
    room = math.min(room, times - call('ZCARD', KEYS[key]))
  end
  local sets = {}
  for i = 1, tonumber(ARGV[at + 7]) do
    sets[i] = key + 1
    key = key + (queue.share and 2 or 1)
  end
  local last = at + 8 + 2 * ARGV[at + 8]
  for i = at + 9, last, 2 do queue.elsewhere[ARGV[i]] = tonumber(ARGV[i + 1]) end
  at = last + 1

  local found, given = {}, 0
  if room > 0 and queue.share then
    found, given = fair_share(sets, room, queue), 1
  elseif room > 0 then
    found, given = first_in_line(sets, room)
  end
  for _, one in ipairs(found) do chosen[#chosen + 1] = one end
  sources = sources + given
end

-- ── what is known of them ──

local CHUNK = 1000 -- words of a command

local function fetch(number, fields)
  local found = {}
  for first = 1, #fields, CHUNK do
    local some = call('HMGET', KEYS[number], unpack(fields, first, math.min(first + CHUNK - 1, #fields)))
    for i = 1, #some do found[#found + 1] = some[i] end
  end
  return found
end

local function job(id)
  return id and call('HGET', jobs, id)
end

local ids, claims = {}, {}
chosen = best(chosen, total, sources < 2)
for i, one in ipairs(chosen) do
  ids[i] = one.id
  local claim = claims[one.set] or {}
  claim[#claim + 1] = lapses
  claim[#claim + 1] = one.member
  claims[one.set] = claim
end
for set, claim in pairs(lapses ~= '' and claims or {}) do
  for first = 1, #claim, CHUNK do
    call('ZADD', KEYS[set], unpack(claim, first, math.min(first + CHUNK - 1, #claim)))
  end
end

local records, keys, keyed, answers = fetch(1, ids), {}, {}, {}
for i, one in ipairs(chosen) do
  local record = records[i]
  answers[i] = {one.set, one.member, record, false, false, false, false, false}
  if record and string.byte(record, 9) > 0 then
    keys[#keys + 1] = sub(record, 10, 9 + string.byte(record, 9))
    keyed[#keys] = i
  end
end
local holders, successors, seals = fetch(2, keys), fetch(3, keys), fetch(4, keys)
for k, i in ipairs(keyed) do
  local answer, holder, successor = answers[i], holders[k], successors[k]
  answer[4], answer[6], answer[8] = holder, successor, seals[k]
  answer[5], answer[7] = holder ~= ids[i] and job(holder), job(successor)
end
return {ripe, answers}
