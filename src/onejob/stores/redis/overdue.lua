-- Return ids of due jobs: of each sorted set and priority the first, and the first of those that wait for a time.
--
-- KEYS     timed (ids by run time); then sorted sets of available jobs, in which a member begins with its priority
-- ARGV     now, most (ids of each set and priority)
-- Returns  ids
--
-- Free jobs have score 0 and come first, in the order of their members; jobs that are set aside come after them.

local call, sub, min, KEYS = redis.call, string.sub, math.min, KEYS
local now, most = ARGV[1], tonumber(ARGV[2])
local PRIORITY, RANK, LEVELS, TIMED = 20, 58, 200, 1000
local ids = call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, TIMED)

local function id_of(member)
  return string.match(member, '^[^:]*', RANK + 1)
end

local function priority_of(key, position)
  return sub(call('ZRANGE', key, position, position)[1], 1, PRIORITY)
end

-- The position of the first member that has the same priority as the one at `last`.
local function first_of_level(key, last)
  local level, low, high = priority_of(key, last), 0, last
  while low < high do
    local middle = math.floor((low + high) / 2)
    if priority_of(key, middle) < level then low = middle + 1 else high = middle end
  end
  return low
end

for i = 2, #KEYS do
  local key = KEYS[i]
  local last, levels = call('ZCOUNT', key, 0, 0) - 1, 0
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, most)) do ids[#ids + 1] = id_of(member) end
  while last >= 0 and levels < LEVELS do -- the last members have the lowest priority
    local first = first_of_level(key, last)
    for _, member in ipairs(call('ZRANGE', key, first, min(first + most - 1, last))) do ids[#ids + 1] = id_of(member) end
    last, levels = first - 1, levels + 1
  end
end
return ids
