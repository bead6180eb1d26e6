-- truthfulqa-mc1: whether the best answer to a question that invites a false one is the likeliest (Lin et al., 2021). Rows
-- of TruthfulQA.csv or of the Hub's truthfulqa/truthful_qa (mc1_targets). As truthfulqa_mc1 of lm-evaluation-harness 0.4.13.
local truthfulqa = require("truthfulqa")
return {
  name = "truthfulqa-mc1",
  metric = "accuracy",
  row = function(row) return truthfulqa.row(row, "mc1_targets", true) end,
  prompt = truthfulqa.prompt,
  choices = {
    field = "choices",
    text = " {choice}",
    right = "right",
  },
}
