-- winogrande: which of two words fills a blank (Sakaguchi et al., 2019). Rows of the Hub's allenai/winogrande (sentence with
-- _, option1, option2, answer 1 or 2) or of LLM-Adapters (instruction, answer). As in winogrande of
-- lm-evaluation-harness 0.4.13, each choice fills the blank and ends the prompt; what is scored is the rest of the
-- sentence, the same for both.
local instruction = require("instruction")
return {
  name = "winogrande",
  metric = "accuracy",
  row = function(row)
    local sentence, options = row.sentence, { row.option1, row.option2 }
    if not sentence then
      sentence = instruction.between(row, "the given sentence: ", "\n\nOption1: ")
      options = instruction.choices(instruction.between(row, sentence .. "\n\n", " Answer format: "), "Option")
    end
    local blank = sentence:find("_", 1, true)
    if not blank then error("the sentence has no '_'") end
    local rest = sentence:sub(blank + 1):gsub("^%s+", ""):gsub("%s+$", "")
    local before = sentence:sub(1, blank - 1)
    return {
      contexts = { before .. options[1], before .. options[2] },
      rest = rest,
      label = tonumber(tostring(row.answer):match("%d")) - 1,
    }
  end,
  prompt = "{choice}",
  choices = {
    field = "contexts",
    text = " {rest}",
    label = "{label}",
  },
}
