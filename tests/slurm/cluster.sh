#!/usr/bin/env bash
# Runs a command on a temporary SLURM cluster: two nodes on this machine, each with two simulated
# GPUs. Needs root and Debian's slurmctld, slurmd, slurm-client and munge.
#
#   tests/slurm/cluster.sh snakemake --profile profiles/slurm …
#
# All files are in a temporary folder and in a private mount namespace. No file of the machine
# changes, and no process keeps running.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  exec unshare --mount --propagation private "$0" --inside "$@"
fi
shift

FOLDER=$(mktemp -d /tmp/slurm.XXXXXX)
HOST=$(hostname)
CONF=$FOLDER/etc
MUNGE_SOCKET=$FOLDER/munge/socket

write_configuration() {
  mkdir -p "$FOLDER"/{etc,munge,state,gpus}
  chmod 755 "$FOLDER"
  # SLURM sets CUDA_VISIBLE_DEVICES only if a GPU is a device file.
  ln -s /dev/null "$FOLDER/gpus/0"
  ln -s /dev/zero "$FOLDER/gpus/1"
  for node in n1 n2; do mkdir "$FOLDER/$node"; done
  cat > "$CONF/cgroup.conf" <<< "CgroupPlugin=cgroup/v1"
  cat > "$CONF/gres.conf" << END
AutoDetect=off
NodeName=n[1-2] Name=gpu Type=pretended File=$FOLDER/gpus/[0-1]
END
  cat > "$CONF/slurm.conf" << END
ClusterName=test
SlurmctldHost=$HOST(127.0.0.1)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$MUNGE_SOCKET
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort=17000
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmctldLogFile=$FOLDER/slurmctld.log
SlurmdPidFile=$FOLDER/%n/slurmd.pid
SlurmdLogFile=$FOLDER/%n/slurmd.log
SlurmdSpoolDir=$FOLDER/%n
StateSaveLocation=$FOLDER/state
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=200
SlurmdParameters=config_overrides
SlurmdTimeout=20
KillWait=5
# Snakemake queries squeue, which forgets finished jobs after this many seconds.
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17001 CPUs=4 RealMemory=6000 Gres=gpu:pretended:2
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17002 CPUs=4 RealMemory=6000 Gres=gpu:pretended:2
PartitionName=main Nodes=n1,n2 Default=YES State=UP
END
}

start() {
  # The host name must resolve to the loopback interface, the only one in use.
  { echo "127.0.0.1 localhost $HOST"; grep -v "[[:space:]]$HOST\b" /etc/hosts || true; } > "$FOLDER/hosts"
  mount --bind "$FOLDER/hosts" /etc/hosts
  # At the usual path: jobs start without the variable that could name another path.
  mount --bind "$CONF" /etc/slurm
  # Without accounting sacct always fails, and Snakemake would wait forever.
  mount --bind /dev/null "$(command -v sacct)"
  head -c 128 /dev/urandom > "$FOLDER/munge/key"
  chmod 600 "$FOLDER/munge/key"
  munged --force --socket="$MUNGE_SOCKET" --key-file="$FOLDER/munge/key" \
    --log-file="$FOLDER/munge/log" --pid-file="$FOLDER/munge/pid" --seed-file="$FOLDER/munge/seed"
  slurmctld
  for node in n1 n2; do slurmd -N "$node"; done
  for _ in $(seq 100); do
    [ "$(sinfo --noheader --Node --states=idle --format=%N | wc -l)" = 2 ] && return
    sleep 0.2
  done
  echo "The cluster did not come up: $(tail -n 3 "$FOLDER"/slurmctld.log "$FOLDER"/n?/slurmd.log)" >&2
  return 1
}

stop() {
  scancel --user root 2> /dev/null || true
  scontrol shutdown 2> /dev/null || true
  for _ in $(seq 50); do
    ls "$FOLDER"/slurmctld.pid "$FOLDER"/n?/slurmd.pid > /dev/null 2>&1 || break
    sleep 0.2
  done
  munged --stop --socket="$MUNGE_SOCKET" --pid-file="$FOLDER/munge/pid" 2> /dev/null || true
  umount /etc/hosts /etc/slurm 2> /dev/null || true
  rm -rf "$FOLDER"
}

trap stop EXIT
write_configuration
start
"$@"
