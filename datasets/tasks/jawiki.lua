-- jawiki: perplexity of Japanese Wikipedia, JSON lines with the field text, one article a line. Each article is tokenised
-- and cut into windows by itself.
return {
  name = "jawiki",
  metric = "perplexity",
  rows = {
    format = "jsonl",
  },
  prompt = "{text}",
}
