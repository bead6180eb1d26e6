#!/bin/sh
# Ranks under Slurm on this machine alone: starts its daemons in a folder of their own, has srun measure and compile, and
# ends them. What they give is what one process does. As root, with Debian's slurm-wlm and openmpi-bin.
#
#     tests/large/slurm.sh        (from the repository root, after make)
# shellcheck source=tests/cli/tap.inc
# shellcheck disable=SC2317 # functions that try calls
. tests/cli/tap.inc

if [ "$(id -u)" -ne 0 ] || ! command -v slurmctld >/dev/null || [ ! -e "$build/libmoec-mpi.so" ]; then
    skip "Slurm" "needs root, slurm-wlm and a build with libopenmpi-dev"
    done_testing
fi

host=$(hostname -s)
end_daemons() {
    for daemon in slurmd slurmctld munged; do
        [ ! -s "$work/$daemon.pid" ] || kill "$(cat "$work/$daemon.pid")" 2>/dev/null
    done
    sleep 1
    rm -rf "$work"
}
trap end_daemons EXIT
chmod 755 "$work" # munged wants every user to reach its socket
mkdir "$work/state" "$work/spool"
cat >"$work/slurm.conf" <<CONF
ClusterName=moec
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$work/slurm.conf"
head -c 1024 /dev/urandom >"$work/munge.key"
chmod 400 "$work/munge.key"
try 0 "munged" munged --force --socket="$work/munge.socket" --key-file="$work/munge.key" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/munged.seed"
try 0 "slurmctld" slurmctld
try 0 "slurmd" slurmd
is_up() {
    i=0
    while [ "$i" -lt 60 ] && ! sinfo -h -t idle | grep -q "$host"; do
        sleep 0.5
        i=$((i + 1))
    done
    [ "$i" -lt 60 ]
}
try 0 "a node" is_up

model=datasets/sample/model
data=datasets/sample/calibration.txt
evaluate() {
    "$@" "$moec" eval "$model" --data "$data" --seq-len 64 --samples 9 --json
}
compile() {
    output=$1
    shift
    "$@" "$moec" compile "$model" --data "$data" --samples 48 --seq-len 64 --max-loss 10% --quiet -o "$work/$output"
}
try 0 "one process measures" evaluate env
cp "$work/stdout" "$work/alone.json"
try 0 "two ranks measure" evaluate srun --mpi=pmix -n 2
if cmp -s "$work/alone.json" "$work/stdout"; then pass "the same"; else fail "the same"; fi
try 0 "one process compiles" compile one.moec env
try 0 "two ranks compile" compile two.moec srun --mpi=pmix -n 2
if cmp -s "$work/one.moec" "$work/two.moec"; then pass "the same bundle"; else fail "the same bundle"; fi
srun --mpi=none -n 2 "$moec" eval "$model" --data "$data" >"$work/stdout" 2>"$work/stderr"
says stderr "^moec eval: srun started 2 ranks that cannot see each other: give srun --mpi=pmix" \
    "ranks that cannot see each other say so"
cat >"$work/job" <<JOB
#!/bin/sh
#SBATCH --ntasks=2 --output=$work/job.txt --error=$work/job.err
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun $PWD/$moec eval $PWD/$model --data $PWD/$data --seq-len 64 --samples 9 --json
JOB
try 0 "mpirun inside a job" sbatch --wait "$work/job"
sed "s|$PWD/||" "$work/job.txt" >"$work/job.json"
if cmp -s "$work/alone.json" "$work/job.json"; then pass "the same of it"; else fail "the same of it"; fi

done_testing
