-- dialogsum: summaries of spoken dialogues (Chen et al., 2021), JSON lines with dialogue and summary.
return {
  name = "dialogsum",
  metric = "rouge-2",
  prompt = "Dialogue:\n{dialogue}\n\nSummary:",
  reference = "{summary}",
  answer = {
    tokens = 64,
    stop = { "\n" },
    stem = true,
  },
}
