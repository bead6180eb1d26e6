-- samsum: summaries of messenger dialogues (Gliwa et al., 2019), a CSV file with id, summary, dialogue.
return {
  name = "samsum",
  metric = "rouge-2",
  prompt = "Dialogue:\n{dialogue}\n\nSummary:",
  reference = "{summary}",
  answer = {
    tokens = 64,
    stop = { "\n" },
    stem = true,
  },
}
