#!/bin/sh
# Is `runc` to the engine of a host: notes which containers are started, also those that an engine
# which was killed can tell nothing of. A line of /var/starts/starts is the id of a container that
# was started, and /var/starts/ID.json its configuration.
command='' bundle='' previous='' word=''
for word; do
  case $previous in --bundle) bundle=$word ;; esac
  case $word in create | start) command=${command:-$word} ;; esac
  previous=$word
done
case $command in
  create) mkdir -p /var/starts && cp "$bundle/config.json" "/var/starts/$word.json" ;;
  start) echo "$word" >>/var/starts/starts ;;
esac
exec REAL_RUNC "$@"
