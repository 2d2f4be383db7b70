#!/bin/sh
# Makes a certificate authority, the server's certificate and one certificate for each site and for the
# administrator, in the current directory. Run it on a machine that is not on the network, and keep ca.key there.
#
#     sh certificates.sh HOST SITE ...
#
# The server gets ca.crt, server.pem, server.key; a site gets ca.crt, SITE.pem, SITE.key; the administrator admin.*.
# What a certificate allows is in its OU (server, site or admin), which this script sets; a site's name cannot.
set -eu
umask 077
export LC_ALL=C

refuse() { echo "certificates.sh: $1; nothing was made" >&2; exit 2; }

[ $# -ge 2 ] || refuse "usage: sh certificates.sh HOST SITE ..."
host=$1
shift
days=${DAYS:-365}
case $host in
  "" | -* | *[!A-Za-z0-9.-]*) refuse "'$host' is no host name or IPv4 address" ;;
  *[!0-9.]*) names="DNS:$host" ;;
  *) names="IP:$host,DNS:$host" ;; # nginx compares an address with DNS names
esac
for name in "$@"; do
  case $name in
    admin | ca | server) refuse "'$name' is the name of a certificate of another role" ;;
    [!a-z]* | *[!a-z0-9-]* | "") refuse "'$name' is no site's name: a lower-case letter, then those, digits and '-'" ;;
  esac
  [ ${#name} -le 31 ] || refuse "'$name' is longer than 31 characters"
done

[ -e ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days "$((days * 5))" \
  -subj "/CN=fedsynth federation CA" -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt

issue() { # name, role, subject alternative names, extended key usage
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/OU=$2/CN=$1" -keyout "$1.key" -out "$1.csr"
  cat > "$1.ext" <<EXTENSIONS
subjectAltName=$3
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=$4
EXTENSIONS
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$1.ext" -out "$1.pem"
  rm "$1.csr" "$1.ext"
}

issue server server "$names,DNS:localhost,IP:127.0.0.1" serverAuth
# A site and the administrator also serve their own forwarders on the loopback interface.
for name in "$@"; do issue "$name" site "DNS:localhost,IP:127.0.0.1" serverAuth,clientAuth; done
issue admin admin "DNS:localhost,IP:127.0.0.1" serverAuth,clientAuth
chmod 644 ca.crt ./*.pem
