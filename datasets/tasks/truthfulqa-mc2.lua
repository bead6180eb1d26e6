-- truthfulqa-mc2: the part that true answers have of all answers' likelihood (Lin et al., 2021). Rows of TruthfulQA.csv or of
-- the Hub's truthfulqa/truthful_qa (mc2_targets). As truthfulqa_mc2 of lm-evaluation-harness 0.4.13.
local truthfulqa = require("truthfulqa")
return {
  name = "truthfulqa-mc2",
  metric = "right-mass",
  row = function(row) return truthfulqa.row(row, "mc2_targets", false) end,
  prompt = truthfulqa.prompt,
  choices = {
    field = "choices",
    text = " {choice}",
    right = "right",
  },
}
