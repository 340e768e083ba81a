# Whether the master whose admin address is $1 leads or stands by. One that stands by says so with status 503.
curl --silent --max-time 4 "$1/health" | grep --quiet --extended-regexp '"service_ready":true|"ha_state":"standby"'
