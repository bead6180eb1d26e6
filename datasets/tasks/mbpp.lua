-- mbpp: short Python programs from a sentence (Austin et al., 2021). Rows of the Hub's mbpp (text, task_id, test_list) or of
-- its sanitized part (prompt in the place of text). moec writes what the model writes and runs none of it. Prompt, its
-- three examples and where an answer ends are as in mbpp of lm-evaluation-harness 0.4.13.
local function problem(text, tests)
  return "You are an expert Python programmer, and here is your task: " .. text .. " Your code should pass these tests:\n\n" ..
    tests[1] .. "\n" .. tests[2] .. "\n" .. tests[3] .. "\n[BEGIN]\n"
end

local examples = {
  {
    "Write a function to find the similar elements from the given two tuple lists.",
    "def similar_elements(test_tup1, test_tup2):\r\n  res = tuple(set(test_tup1) & set(test_tup2))\r\n  return (res) ",
    {
      "assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)",
      "assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)",
      "assert similar_elements((11, 12, 14, 13),(17, 15, 14, 13)) == (13, 14)",
    },
  },
  {
    "Write a python function to identify non-prime numbers.",
    "import math\r\ndef is_not_prime(n):\r\n    result = False\r\n    for i in range(2,int(math.sqrt(n)) + 1):\r\n" ..
      "        if n % i == 0:\r\n            result = True\r\n    return result",
    {
      "assert is_not_prime(2) == False",
      "assert is_not_prime(10) == True",
      "assert is_not_prime(35) == True",
    },
  },
  {
    "Write a function to find the largest integers from a given list of numbers using heap queue algorithm.",
    "import heapq as hq\r\ndef heap_queue_largest(nums,n):\r\n  largest_nums = hq.nlargest(n, nums)\r\n  return largest_nums",
    {
      "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],3)==[85, 75, 65] ",
      "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],2)==[85, 75] ",
      "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],5)==[85, 75, 65, 58, 35]",
    },
  },
}

local before = ""
for _, example in ipairs(examples) do
  before = before .. problem(example[1], example[3]) .. example[2] .. "\n[DONE]\n\n"
end

return {
  name = "mbpp",
  metric = "completion",
  row = function(row)
    return { id = tostring(row.task_id), problem = before .. problem(row.text or row.prompt, row.test_list) }
  end,
  prompt = "{problem}",
  reference = "{id}",
  answer = {
    tokens = 256,
    stop = { "[DONE]" },
  },
}
