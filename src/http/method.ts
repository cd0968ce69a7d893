/**
 * What may be a method: a token (RFC 9110 9.1) that begins with a letter and has none in lower case. Some servers read `get` as
 * `GET`, so a limit on `GET` would not hold for it. nginx refuses it, too.
 */
export const METHOD = /^[A-Z][A-Z0-9!#$%&'*+\-.^_`|~]*$/
