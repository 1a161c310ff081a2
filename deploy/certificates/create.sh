#!/usr/bin/env bash
# The serving certificate of drydock-apiserver without cert-manager: makes an authority and a
# certificate, stores the certificate as the Secret drydock-apiserver-serving, and prints the value of
# the APIService's spec.caBundle. Needs openssl and kubectl. The authority's key is thrown away, so
# run it again, and patch the APIService again, before the certificate ends (default: 365 days).
#
#   create.sh [days]
set -euo pipefail

days=${1:-365}
name=drydock-apiserver.drydock-system.svc
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
kubectl -n drydock-system create secret tls drydock-apiserver-serving --cert=tls.crt --key=tls.key \
  --dry-run=client -o yaml | kubectl apply --server-side -f - >&2
base64 <ca.crt | tr -d '\n'
echo
