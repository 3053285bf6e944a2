# A stdio server of the modern era that costs next to nothing: one tool, `pay`, answered with the mark in $1.
say() { printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete",%s}}\n' "$id" "$1"; }
while IFS= read -r line; do
  id=${line#*'"id":'}
  id=${id%%,*}
  case $line in
    *'"server/discover"'*) say '"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}' ;;
    *'"tools/list"'*) say '"tools":[{"name":"pay","inputSchema":{"type":"object"}}]' ;;
    *'"tools/call"'*) say '"content":[{"type":"text","text":"'"$1"'"}]' ;;
  esac
done
