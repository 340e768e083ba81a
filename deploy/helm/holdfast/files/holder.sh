# Starts the holder of the host $1 with the port $2; the admin addresses of the masters follow. A holder that comes back before
# the master has given up the one before loses what it registers (docs/engine.md): so it waits, half a minute at most.
here=$(dirname "$0")
host=$1 port=$2
shift 2
for _ in $(seq 30); do
    sh "$here/holder-healthy.sh" "$host" "$@" || break
    sleep 1
done
exec mooncake_client --flagfile="$here/holder.flags" --host="$host" --port="$port"
