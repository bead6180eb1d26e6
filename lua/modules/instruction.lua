-- Rows of LLM-Adapters (arXiv:2304.01933): questions, choices and answers within an instruction's text.
local instruction = {}

-- The text of choices after a word and its number, "Answer1: a Answer2: b", as a list.
function instruction.choices(text, word)
  local list, rest = {}, text
  local number = 1
  local start, stop = rest:find(word .. "1: ", 1, true)
  while start do
    rest = rest:sub(stop + 1)
    number = number + 1
    start, stop = rest:find(" " .. word .. number .. ": ", 1, true)
    list[#list + 1] = start and rest:sub(1, start - 1) or rest
  end
  return list
end

-- What stands between two texts of the row's instruction; nil where they are not there.
function instruction.between(row, before, after)
  local text = row.instruction
  if type(text) ~= "string" then return nil end
  local _, first = text:find(before, 1, true)
  local last = first and text:find(after, first + 1, true)
  return last and text:sub(first + 1, last - 1)
end

-- A question with choices: its text, the choices and the place of the right one, from 0; nil of other rows.
function instruction.question(row)
  local question = instruction.between(row, "Please choose the correct answer to the question: ", "\n\nAnswer1: ")
  local text = question and instruction.between(row, "\n\n", "\n\nAnswer format: ")
  if not text then return nil end
  -- A question of several paragraphs: its choices begin where the question ends.
  text = instruction.between(row, question .. "\n\n", "\n\nAnswer format: ")
  return question, instruction.choices(text, "Answer"), tonumber(row.answer:match("%d+")) - 1
end

-- Where a label stands in a list of labels, from 0.
function instruction.place(labels, label)
  for i, each in ipairs(labels) do
    if each == label then return i - 1 end
  end
  error("the answer '" .. tostring(label) .. "' is none of the row's choices")
end

return instruction
