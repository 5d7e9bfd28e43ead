-- Show who stands for a key, and its mark, as `swap` does.
--
-- KEYS     jobs · held · next · marks
-- ARGV[1]  key, ARGV[2]  "2" to show its mark too

local call, jobs, key = redis.call, KEYS[1], ARGV[1]
local holder, successor, mark = call('HGET', KEYS[2], key), call('HGET', KEYS[3], key), false
local shown = {{}, holder, holder and call('HGET', jobs, holder), successor, false, false, false}
if successor then shown[5] = call('HGET', jobs, successor) end
if ARGV[2] == '2' then mark = call('HGET', KEYS[4], key) end
if mark then
  shown[6] = mark
  shown[7] = call('HGET', jobs, string.sub(mark, 2, 1 + string.byte(mark, 1)))
end
return shown
