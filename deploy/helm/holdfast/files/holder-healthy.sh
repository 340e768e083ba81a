# Whether a master knows memory of the host $1; the admin addresses of the masters follow. Only the leader answers.
host=$1
shift
for master; do
    curl --silent --max-time 2 "$master/get_all_segments" | grep --quiet --fixed-strings "$host:" && exit 0
done
exit 1
