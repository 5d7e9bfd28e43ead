-- Take the best available jobs aside for a moment, so that no two workers decide on the same ones.
--
-- KEYS     the bucket's six hashes, the set of timed jobs, then one set of available jobs per queue and task
-- ARGV[1]  now, ARGV[2]  when a claim lapses, or "" to only look, ARGV[3]  how many in all, ARGV[4]  how many timed jobs at most
-- ARGV[5…] per queue: its counter · how many it may give · its limit, or "" · how many of the sets are its own
--
-- A claimed job stays in its set, with the end of the claim as its score: free ones have score 0.
-- Answers the jobs whose time has come, and, if there are none, the claimed ones, each with its set, its member
-- and who stands for its key.

local jobs, held, next, marks, active, timed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[7]
local now, lapses, total, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local FIXED = 7

local ripe = redis.call('ZRANGEBYSCORE', timed, '-inf', now, 'LIMIT', 0, most)
if #ripe > 0 then return {ripe, {}} end

-- A member begins with 24 bytes that sort like the job's rank; as four numbers, because `<` on strings would
-- follow the server's locale.
local function ranked(set, member)
  local one, bytes = {set = set, member = member}, {string.byte(member, 1, 24)}
  for i = 1, 4 do
    local number = 0
    for j = 6 * i - 5, 6 * i do number = number * 256 + bytes[j] end
    one[i] = number
  end
  return one
end

local function before(a, b)
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
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[set], '(0', now)) do
    redis.call('ZADD', KEYS[set], 0, member)
  end
  return redis.call('ZRANGEBYSCORE', KEYS[set], 0, 0, 'LIMIT', 0, room)
end

local chosen, set, sources = {}, FIXED, 0
for i = 5, #ARGV, 4 do
  local room = math.min(total, tonumber(ARGV[i + 1]))
  if ARGV[i + 2] ~= '' then
    room = math.min(room, tonumber(ARGV[i + 2]) - tonumber(redis.call('HGET', active, ARGV[i]) or 0))
  end
  local found, last, given = {}, set + tonumber(ARGV[i + 3]), 0
  while set < last do
    set = set + 1
    local members = room > 0 and available(set, room) or {}
    given = given + math.min(#members, 1)
    for _, member in ipairs(members) do found[#found + 1] = ranked(set, member) end
  end
  for _, one in ipairs(best(found, room, given < 2)) do chosen[#chosen + 1] = one end
  sources = sources + given
end

local function job(id)
  return id and redis.call('HGET', jobs, id)
end

local answers = {}
for i, one in ipairs(best(chosen, total, sources < 2)) do
  if lapses ~= '' then redis.call('ZADD', KEYS[one.set], lapses, one.member) end
  local id = string.sub(one.member, 25)
  local record = job(id)
  local answer = {one.set, one.member, record, false, false, false, false, false}
  if record and string.byte(record, 9) > 0 then
    local key = string.sub(record, 10, 9 + string.byte(record, 9))
    answer[4] = redis.call('HGET', held, key)
    answer[5] = answer[4] ~= id and job(answer[4])
    answer[6] = redis.call('HGET', next, key)
    answer[7] = job(answer[6])
    answer[8] = redis.call('HGET', marks, key)
  end
  answers[i] = answer
end
return {ripe, answers}
