-- dialogues: summaries of the generated dialogues of datasets/switch-sample, JSON lines with dialogue and summary, for
-- encoder-decoder models: the encoder reads the prompt, the decoder writes the answer.
return {
  name = "dialogues",
  metric = "rouge-2",
  prompt = "summarize: {dialogue}",
  reference = "{summary}",
  answer = {
    tokens = 48,
    stem = false,
  },
}
