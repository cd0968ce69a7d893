/** What users of `--egress` must know. `start` and `check` say it. */
export const CONNECT_PACED =
  'egress: CONNECT is paced for each connection, not for each request in it; a base URL such as /https/HOST paces requests'
