-- What the other parts call by short names.

local floor, max, min = math.floor, math.max, math.min
local sub, byte, match, gmatch = string.sub, string.byte, string.match, string.gmatch
local pack, unpack_from = struct.pack, struct.unpack
