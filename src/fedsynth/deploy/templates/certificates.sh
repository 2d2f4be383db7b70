#!/bin/sh
# Makes a certificate authority, the server's certificate and one certificate for each site and for the
# administrator, in the current directory. Run it on a machine that is not on the network, and keep ca.key there.
#
#     sh certificates.sh HOST SITE ...
#
# The server gets ca.crt, server.pem, server.key; a site gets ca.crt, SITE.pem, SITE.key; the administrator admin.*.
set -eu
umask 077
[ $# -ge 2 ] || { echo "usage: sh certificates.sh HOST SITE ..." >&2; exit 2; }
host=$1
shift
days=${DAYS:-365}

[ -e ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days "$((days * 5))" \
  -subj "/CN=fedsynth federation CA" -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt

issue() { # name, subject alternative names, extended key usage
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
  cat > "$1.ext" <<EXTENSIONS
subjectAltName=$2
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=$3
EXTENSIONS
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$1.ext" -out "$1.pem"
  rm "$1.csr" "$1.ext"
}

issue server "DNS:$host,DNS:localhost,IP:127.0.0.1" serverAuth
for name in "$@" admin; do # each also serves its own forwarder on the loopback interface
  issue "$name" "DNS:localhost,IP:127.0.0.1" serverAuth,clientAuth
done
chmod 644 ca.crt ./*.pem
