-- What the user asked for: a loss target, a size target, or both.
local target = {}

-- Whether an assignment meets the targets. Size is asked first: it costs nothing.
function target.met(moec, candidate)
  if moec.max_size and moec.size(candidate) > moec.max_size then return false, "size" end
  if not moec.max_loss then return true end
  local result = moec.evaluate(candidate)
  return result.accepted, "loss", result
end

-- Largest k in 0..n for which `ok(k)` holds, given that ok(0) holds and that ok falls from true to false somewhere
-- (or never). Halving: about log2(n) calls.
function target.last(n, ok)
  if n == 0 or ok(n) then return n end
  local low, high = 0, n
  while high - low > 1 do
    local middle = (low + high) // 2
    if ok(middle) then low = middle else high = middle end
  end
  return low
end

-- Smallest k in 0..n for which `ok(k)` holds, nil when there is none; ok rises from false to true.
function target.first(n, ok)
  if not ok(n) then return nil end
  return n - target.last(n, function(k) return ok(n - k) end)
end

function target.percent(x) return string.format("%.2f%%", 100 * x) end

-- "12.41 MB", or "3.20 kB" below one.
function target.bytes(n)
  if n < 1e6 then return string.format("%.2f kB", n / 1e3) end
  return string.format("%.2f MB", n / 1e6)
end

return target
