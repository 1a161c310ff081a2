#!/usr/bin/env bash
# Creates the serving certificate of drydock-apiserver, or of another workload, without cert-manager: it creates a CA and a
# certificate, stores both certificates as the Secret WORKLOAD-serving, and prints the value for
# the APIService's spec.caBundle, or the webhook's. Requires openssl and kubectl. The CA's key is not kept: before the
# certificate expires (default: 365 days), run the script, patch the APIServices (or the webhook) again, and restart the
# controller (see ../README.md).
#
#   create.sh [days] [workload]
set -euo pipefail

days=${1:-365}
workload=${2:-drydock-apiserver}
name=$workload.drydock-system.svc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$days" \
  -subj "/CN=drydock-ca" -addext "basicConstraints=critical,CA:TRUE" \
  -addext "keyUsage=critical,keyCertSign" -keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
  -keyout tls.key -out tls.csr 2>/dev/null
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -out tls.crt \
  -extfile <(printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth\n' "$name") 2>/dev/null
kubectl -n drydock-system create secret generic "$workload-serving" --type=kubernetes.io/tls \
  --from-file=tls.crt --from-file=tls.key --from-file=ca.crt --dry-run=client -o yaml | kubectl apply --server-side -f - >&2
base64 <ca.crt | tr -d '\n'
echo
