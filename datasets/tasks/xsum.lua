-- xsum: one sentence about a news article (Narayan et al., 2018), JSON lines with document and summary.
return {
  name = "xsum",
  metric = "rouge-2",
  prompt = "Article:\n{document}\n\nSummary of the article in one sentence:",
  reference = "{summary}",
  answer = {
    tokens = 64,
    stop = { "\n" },
    stem = true,
  },
}
