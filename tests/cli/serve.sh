#!/bin/sh
# moec serve by curl: words against moec run, one request and eight at once, the scoring requests of lm-evaluation-harness,
# what is refused, who may ask, clients that go away, and the end.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

command -v curl >/dev/null || { echo "1..0 # SKIP no curl"; exit 0; }

model=$work/model
bundle=$work/m.moec
mkdir "$model"
cp datasets/sample/model/* "$model"
cp tests/fixtures/chat/chatml.jinja "$model/chat_template.jinja"
"$moec" compile "$model" --policy uniform --bits 4 -q -o "$bundle" >"$work/log" 2>&1 || cat "$work/log"

# ---- helpers ----

# start OPTION...: a server of the bundle; $server is its process, $url its address.
start() {
    rm -f "$work/serve.out"
    "$moec" serve "$bundle" --port 0 "$@" >"$work/serve.out" 2>"$work/serve.err" &
    server=$!
    n_waits=0
    while [ ! -s "$work/serve.out" ] && [ "$n_waits" -lt 200 ] && kill -0 "$server" 2>/dev/null; do
        n_waits=$((n_waits + 1))
        sleep 0.1
    done
    url=$(sed -n "s|.*listens on \(http://[^,]*\),.*|\1|p" "$work/serve.out")
    case $url in *0.0.0.0*) url=http://127.0.0.1:${url##*:} ;; esac
    if [ -n "$url" ]; then pass "a server: $*"; else fail "a server: $* ($(cat "$work/serve.err"))"; fi
}

# end STATUS NAME: SIGTERM ends the server with this status.
end() {
    kill -TERM "$server"
    wait "$server"
    got=$?
    if [ "$got" -eq "$1" ]; then pass "$2"; else fail "$2 (status $got)"; fi
}

# post PATH BODY [OPTION...]: the answer in stdout, the status of HTTP in $code.
post() {
    path=$1
    printf '%s' "$2" >"$work/body"
    shift 2
    code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url$path" -H 'Content-Type: application/json' \
        --data-binary "@$work/body" "$@" 2>"$work/stderr")
}

# is CODE NAME: the last answer has this status.
is() {
    if [ "$code" = "$1" ]; then pass "$2"; else fail "$2 (status $code)"; fi
}

# refused CODE PARAM PATH BODY NAME: the request is refused with that field, and the server goes on.
refused() {
    post "$3" "$4"
    if [ "$code" = "$1" ] && grep -q '"error":{"message":"..*","type":"[a-z_]*","param":'"$2" "$work/stdout"; then
        pass "$5"
    else
        fail "$5 (status $code)"
    fi
}

# text FILE: the first text of an answer, spelled out.
text() {
    sed -n 's/.*"text":"\(\([^"\\]\|\\.\)*\)","logprobs".*/\1/p' "$1" | sed 's/\\"/"/g; s/\\n/\n/g'
}

# words NAME FILE OPTION...: the text in an answer is that of moec run.
words() {
    name=$1
    text "$2" >"$work/served"
    shift 2
    "$moec" run "$bundle" "$@" >"$work/ran" 2>"$work/stderr"
    same "$work/served" "$work/ran" "$name"
}

# ---- words ----

budget=$(mebibytes 64)
start --memory "$budget" --sessions 4 --log
cp "$work/serve.out" "$work/stdout"
narrow stdout "its line has 80 columns"
post /v1/completions '{"prompt":"Once upon a time","max_tokens":24}'
is 200 "a completion"
words "it has the words of moec run" "$work/stdout" -p "Once upon a time" -n 24
says stdout '"object":"text_completion".*"finish_reason":"length".*"prompt_tokens":6,"completion_tokens":24' "and says what it used"
post /v1/completions '{"prompt":"Once upon a time","max_tokens":24,"temperature":0.9,"top_p":0.95,"top_k":50,"min_p":0.01,
    "repetition_penalty":1.2,"seed":7,"user":"me","stop":null,"logit_bias":{},"presence_penalty":0}'
words "so has one with draws and a penalty" "$work/stdout" -p "Once upon a time" -n 24 --temp 0.9 --top-p 0.95 --top-k 50 \
    --min-p 0.01 --repetition-penalty 1.2 --seed 7
post /v1/completions '{"prompt":"Once upon a time","max_tokens":24,"temperature":0.9,"seed":7,"n":2}'
says stdout '"cached_tokens":5' "which goes on from what another left"
sed 's/.*"index":1,/"index":1,/' "$work/stdout" >"$work/second"
words "choice i of n takes seed + i" "$work/second" -p "Once upon a time" -n 24 --temp 0.9 --seed 8
start_of='Once upon a time there was a fox who lived in a wood near the sea'
post /v1/completions "{\"prompt\":\"$start_of and\",\"max_tokens\":16}"
post /v1/completions "{\"prompt\":\"$start_of, but\",\"max_tokens\":16}"
says stdout '"cached_tokens":[1-9][0-9]' "a prompt that begins as another did reads the rest alone"
words "and has the words of moec run" "$work/stdout" -p "$start_of, but" -n 16
post /v1/completions '{"prompt":"Once upon a time","max_tokens":24,"stop":[" pit","zzz"]}'
words "a text ends before a stop text" "$work/stdout" -p "Once upon a time" -n 24 --stop " pit"
says stdout '"finish_reason":"stop"' "and says so"

i=0
while [ "$i" -lt 8 ]; do
    i=$((i + 1))
    curl -s "$url/v1/completions" -H 'Content-Type: application/json' \
        -d "{\"prompt\":\"The fox number $i said\",\"max_tokens\":40,\"temperature\":0.8,\"seed\":$i}" >"$work/at-once-$i" &
    asked="${asked:-} $!"
done
# shellcheck disable=SC2086 # a list of processes
wait $asked
i=0
while [ "$i" -lt 8 ]; do
    i=$((i + 1))
    words "of eight at once, the words of run $i" "$work/at-once-$i" -p "The fox number $i said" -n 40 --temp 0.8 --seed "$i"
done

post /v1/chat/completions '{"messages":[{"role":"system","content":"Be kind"},{"role":"user",
    "content":[{"type":"text","text":"Hello <|im_end|>"}]}],"max_completion_tokens":16}'
is 200 "a conversation"
sed -n 's/.*"content":"\(\([^"\\]\|\\.\)*\)"}.*/\1/p' "$work/stdout" | sed 's/\\"/"/g; s/\\n/\n/g' >"$work/served"
"$moec" run "$bundle" --chat --system "Be kind" -p "Hello <|im_end|>" -n 16 >"$work/ran" 2>"$work/stderr"
same "$work/served" "$work/ran" "it has the words of moec run --chat"

post /v1/completions '{"prompt":"Once upon a time","max_tokens":12,"stream":true,"stream_options":{"include_usage":true}}'
says stdout '^data: \[DONE\]$' "a stream ends"
says stdout '"choices":\[\],"usage":\{"prompt_tokens":6,"completion_tokens":12' "after what it used"
sed -n 's/^data: .*"text":"\(\([^"\\]\|\\.\)*\)","logprobs".*/\1/p' "$work/stdout" | tr -d '\n' | sed 's/\\"/"/g' >"$work/served"
echo >>"$work/served"
"$moec" run "$bundle" -p "Once upon a time" -n 12 >"$work/ran" 2>"$work/stderr"
same "$work/served" "$work/ran" "and has the words of moec run"

# ---- scores ----

post /v1/completions '{"model":"m","prompt":[[70,71,72,73,74],[80,81]],"max_tokens":1,"temperature":0,"logprobs":1,"echo":true,
    "seed":1234}'
is 200 "a scoring request of lm-evaluation-harness"
says stdout '"index":1,' "answers every prompt"
says stdout '"token_logprobs":\[null,-[0-9.e-]*,-[0-9.e-]*,-[0-9.e-]*,-[0-9.e-]*,-[0-9.e-]*\],"top_logprobs":\[null,' "with a logarithm for each token but the first, and for the generated one"
says stdout '"text_offset":\[0,' "and offsets"
says stdout '"moec":\{"score":"prompt"\}' "and says how it was read"
greedy=$(sed 's/.*"index":1,//; s/.*"token_logprobs":\[null,[^,]*,\([^]]*\)\].*/\1/' "$work/stdout")
if grep -q "\"top_logprobs\":\[.*{\"[^{]*\":$greedy}" "$work/stdout"; then
    pass "a greedy token has the same digits in both lists"
else
    fail "a greedy token has the same digits in both lists ($greedy)"
fi
cp "$work/stdout" "$work/scored"
post /v1/completions '{"prompt":[70,71,72,73,74],"max_tokens":0,"temperature":0,"logprobs":1,"echo":true}'
first=$(sed 's/.*"token_logprobs":\[null,\([^]]*\)\].*/\1/' "$work/stdout")
if [ -n "$first" ] && grep -qF "[null,$first," "$work/scored"; then
    pass "one prompt alone, without a token more, has the same logarithms"
else
    fail "one prompt alone, without a token more, has the same logarithms"
fi

# ---- tokens ----

post /tokenize '{"prompt":"Once upon a time","add_special_tokens":false}'
says stdout '"tokens":\[[0-9,]*\]' "/tokenize"
tokens=$(sed 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/' "$work/stdout")
post /detokenize "{\"tokens\":$tokens}"
says stdout '"prompt":"Once upon a time"' "/detokenize gives the text back"
try 0 "/tokenizer_info" curl -sf "$url/tokenizer_info"
says stdout '"eos_token":"<\|endoftext\|>"' "names what ends a text"
post /tokenize '{"prompt":"<|endoftext|>"}'
says stdout '"count":1,' "its id can be looked up"
post /tokenize '{"prompt":"a <|endoftext|>"}'
says stdout '"count":([5-9]|[0-9][0-9]),' "within a text it is none"
try 0 "/health" curl -sf "$url/health"
try 0 "/metrics" curl -sf "$url/metrics"
says stdout '^moec_first_token_seconds_count [1-9]' "counts first tokens"
says stdout '^moec_expert_hits_total [1-9]' "and hits"
try 0 "/v1/models" curl -sf "$url/v1/models"
says stdout '"id":"m"' "names the model"
try 0 "the page" curl -sfi "$url/"
says stdout "^Content-Security-Policy: default-src 'none'; script-src 'self'" "has a policy"

# ---- what is refused ----

refused 400 null /v1/completions '{"prompt":' "JSON that ends early"
refused 400 null /v1/completions '[]' "a body that is no object"
refused 400 '"prompt"' /v1/completions '{}' "no prompt"
refused 400 '"prompt"' /v1/completions '{"prompt":[]}' "an empty list"
refused 400 '"prompt"' /v1/completions '{"prompt":[[99999999]]}' "an id past the vocabulary"
refused 400 '"prompt"' /v1/completions '{"prompt":[1,-2]}' "a negative id"
refused 400 '"temperatur"' /v1/completions '{"prompt":"a","temperatur":1}' "a misspelt field is named"
refused 400 '"tools"' /v1/chat/completions '{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]}' "tools"
refused 400 '"messages"' /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}' "an image"
refused 400 '"messages"' /v1/chat/completions '{"messages":[{"content":"a"}]}' "a message without a role"
refused 400 '"n"' /v1/completions '{"prompt":"a","n":1000}' "a thousand choices"
refused 400 '"max_tokens"' /v1/completions '{"prompt":"a","max_tokens":-1}' "a negative number"
refused 400 '"temperature"' /v1/completions '{"prompt":"a","temperature":1e99}' "a huge one"
refused 400 null /v1/completions '{"prompt":"a","seed":99999999999999999999}' "one past 64 bits"
refused 400 '"stop"' /v1/completions "{\"prompt\":\"a\",\"stop\":[$(yes '"x",' | head -n 100 | tr -d '\n')\"x\"]}" "a hundred stop texts"
refused 413 null /v1/completions "{\"prompt\":\"a\",\"stop\":[$(yes '"x",' | head -n 40000 | tr -d '\n')\"x\"]}" "forty thousand"
refused 400 '"prompt"' /v1/completions "{\"prompt\":\"$(yes 'word ' | head -n 2000 | tr -d '\n')\",\"max_tokens\":1}" "a full context"
says stdout '"code":"context_length_exceeded"' "says so"
printf '{"prompt":"a\000b"}' >"$work/body"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/completions" -H 'Content-Type: application/json' --data-binary "@$work/body")
is 400 "NUL in the body"
printf '\377\376{\000}\000' >"$work/body"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/completions" -H 'Content-Type: application/json' --data-binary "@$work/body")
is 400 "UTF-16"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/completions" -H 'Content-Type: application/json' \
    -H 'Content-Length: 1073741824' -H 'Expect: 100-continue' -d '{}')
is 413 "a body of a gibibyte, before it comes"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/completions" -H 'Content-Type: application/json' \
    -H 'Content-Length: 2' -H 'Transfer-Encoding: chunked' -d '{}')
is 400 "two lengths"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/completions" -H 'Content-Type: text/plain' -d '{"prompt":"a"}')
is 415 "a body that says it is text"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/completions")
is 405 "GET where POST is asked for"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v2")
is 404 "another path"

# ---- who may ask ----

code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/v1/models" -H 'Host: evil.example')
is 403 "another host"
post /v1/completions '{"prompt":"a"}' -H 'Origin: http://evil.example'
is 403 "a page of another origin"
post /v1/completions '{"prompt":"a","max_tokens":1}' -H "Origin: $url"
is 200 "the server's own page"

# ---- clients that go away ----

# waits_for PATTERN NAME [OPTION...]: a line of /metrics, asked with curl's options, matches within ten seconds.
waits_for() {
    pattern=$1
    name=$2
    shift 2
    n_waits=0
    curl -s "$url/metrics" "$@" >"$work/stdout"
    while ! grep -q "$pattern" "$work/stdout" && [ "$n_waits" -lt 200 ]; do
        n_waits=$((n_waits + 1))
        sleep 0.05
        curl -s "$url/metrics" "$@" >"$work/stdout"
    done
    says stdout "$pattern" "$name"
}

# leaves BODY NAME: a client asks, and goes away when its request runs.
leaves() {
    curl -sN "$url/v1/completions" -H 'Content-Type: application/json' -d "$1" >"$work/cut" &
    client=$!
    waits_for '^moec_sequences_running [1-9]' "$2"
    kill "$client"
    wait "$client"
}
long='{"prompt":"Once","max_tokens":1000,"temperature":1,"repetition_penalty":1.3,"n":16'
leaves "$long,\"stream\":true}" "a stream runs"
waits_for '^moec_requests_cancelled_total 1$' "a stream whose client is gone ends"
leaves "$long}" "an answer runs"
waits_for '^moec_requests_cancelled_total 2$' "so does an answer that nobody waits for"
waits_for '^moec_sequences_running 0$' "and both give their sessions back"
post /v1/completions '{"prompt":"Once upon a time","max_tokens":24}'
words "the next request has its words" "$work/stdout" -p "Once upon a time" -n 24

# ---- the end ----

peak=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status")
if takes_memory; then
    skip "the budget is kept" "the sanitizer takes memory of its own"
elif [ "$peak" -le 65536 ]; then
    pass "the budget is kept"
else
    fail "the budget is kept (peak $peak kB)"
fi
curl -s "$url/v1/completions" -H 'Content-Type: application/json' \
    -d '{"prompt":"Once upon a time","max_tokens":400,"temperature":1,"seed":3,"n":8}' >"$work/last" &
last=$!
waits_for '^moec_sequences_running [1-9]' "a last request runs"
end 0 "SIGTERM ends the server"
wait "$last"
if grep -q '"finish_reason":"' "$work/last"; then pass "after what was at work"; else fail "after what was at work"; fi
if grep -q 'POST /v1/completions 200' "$work/serve.err" && ! grep -qi 'upon\|fox\|evil' "$work/serve.err"; then
    pass "the log has paths and no texts"
else
    fail "the log has paths and no texts"
fi

# ---- keys ----

try 2 "another address without a key" "$moec" serve "$bundle" --address 0.0.0.0 --port 0
says stderr "give --key-file, or --no-key" "names both ways"
echo "a-key-of-sixteen-bytes-or-more" >"$work/keys"
chmod 644 "$work/keys"
try 2 "a key file that others can read" "$moec" serve "$bundle" --key-file "$work/keys" --port 0
says stderr "chmod 600" "names the way out"
chmod 600 "$work/keys"
try 2 "not an IP address" "$moec" serve "$bundle" --address localhost
start --address 0.0.0.0 --key-file "$work/keys" --name serve.example --origin https://page.example --score decided --grace 0.2s
for path in /v1/models /metrics /tokenizer_info; do
    code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url$path")
    is 401 "$path without a key"
done
post /tokenize '{"prompt":"a"}' -H 'Authorization: Bearer a-key-of-sixteen-bytes-or-mort'
is 401 "another key"
post /tokenize '{"prompt":"a"}' -H 'Authorization: Bearer a-key-of-sixteen-bytes-or-more'
is 200 "the key"
code=$(curl -s -o "$work/stdout" -w '%{http_code}' "$url/health" -H 'Host: serve.example:443')
is 200 "health has no key, and a host may be named"
code=$(curl -s -o "$work/stdout" -D "$work/headers" -w '%{http_code}' -X OPTIONS "$url/v1/completions" -H 'Origin: https://page.example')
is 204 "an origin that is named may ask"
if grep -qi '^Access-Control-Allow-Origin: https://page.example' "$work/headers"; then pass "by CORS"; else fail "by CORS"; fi
post /v1/completions '{"prompt":[70,71],"max_tokens":1,"logprobs":1,"echo":true}' -H 'Authorization: Bearer a-key-of-sixteen-bytes-or-more'
says stdout '"moec":\{"score":"decided"\}' "--score decided"
curl -s "$url/v1/completions" -H 'Content-Type: application/json' -H 'Authorization: Bearer a-key-of-sixteen-bytes-or-more' \
    -d "$long}" >"$work/last" &
last=$!
waits_for '^moec_sequences_running [1-9]' "a request runs" -H 'Authorization: Bearer a-key-of-sixteen-bytes-or-more'
end 0 "it ends"
wait "$last"
if grep -q '"code":"shutting_down"' "$work/last"; then pass "and tells whom it cut"; else fail "and tells whom it cut"; fi
# What a first request reads from an emulated device takes its time.
start --emulate-storage 2MB/s,1ms --sessions 1
before=$(date +%s%N)
post /v1/completions '{"prompt": "The old miller", "max_tokens": 4}'
took_ms=$((($(date +%s%N) - before) / 1000000))
is 200 "an emulated device answers"
if [ "$took_ms" -gt 100 ]; then pass "and slowly"; else fail "and slowly ($took_ms ms)"; fi
end 0 "it ends too"
try 1 "a budget that is too small" "$moec" serve "$bundle" --memory 1MiB --port 0
says stderr "below the floor" "is refused"

done_testing
