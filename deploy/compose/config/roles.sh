# Makes the users and roles of the index, as docs/security.md describes them, and enables authentication. Run as etcd's user
# `root`, by a certificate in that name; run again, it adds what is missing. Users have no passwords: a certificate with the
# user's common name is the whole identity.
#
#   TENANTS   names with spaces between them. Each is a user, its role, and the store that the role is for.
set -eu

has() { etcdctl "$1" list | grep --quiet --line-regexp "$2"; }
is_there() { [ -n "$(etcdctl get --print-value-only "$1")" ]; }

# user NAME ROLE
user() {
    has user "$1" || etcdctl user add "$1" --no-password
    etcdctl user get "$1" | grep --quiet "^Roles:.* $2\( \|\$\)" || etcdctl user grant-role "$1" "$2"
}

has role root || etcdctl role add root
user root root

# What all stores share: these two keys, and the map of clusters if there is one. A tenant may only read it.
is_there /tensorhold/schema || etcdctl put /tensorhold/schema 1
nonce=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
is_there /tensorhold/epoch || etcdctl put /tensorhold/epoch "{\"number\":0,\"nonce\":\"$nonce\"}"

# Stewards look after all stores.
has role steward || etcdctl role add steward
etcdctl role grant-permission steward --prefix=true readwrite /tensorhold/
user steward steward

for tenant in $TENANTS; do
    has role "$tenant" || etcdctl role add "$tenant"
    etcdctl role grant-permission "$tenant" --prefix=true readwrite "/tensorhold/$tenant/"
    etcdctl role grant-permission "$tenant" read /tensorhold/schema
    etcdctl role grant-permission "$tenant" read /tensorhold/epoch
    etcdctl role grant-permission "$tenant" read /tensorhold/clusters
    user "$tenant" "$tenant"
done

etcdctl auth enable
