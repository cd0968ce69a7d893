/**
 * `Priority` (RFC 9218), a dictionary of structured fields (RFC 9651 3.2, 4.2.2): `u=1, i`. As the standard says, a field that
 * does not parse counts as absent, and so does an urgency that is no integer from 0 to 7. Of several urgencies the last
 * counts.
 */

const KEY = '[a-z*][a-z0-9_.*-]*'
const BARE_ITEM = [
  '-?\\d{1,15}(?:\\.\\d{1,3})?',
  '"(?:[ !#-[\\]-~]|\\\\["\\\\])*"',
  "[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_`|~-]*",
  ':[A-Za-z0-9+/=]*:',
  '\\?[01]',
].join('|')
const PARAMETERS = `(?:; *${KEY}(?:=(?:${BARE_ITEM}))?)*`

/** A member. A list in it has no strings with brackets, and is not looked into. */
const MEMBER = new RegExp(`(${KEY})(?:=(${BARE_ITEM}|\\([^()"]*\\)))?${PARAMETERS}`, 'y')
const COMMA = /[ \t]*,[ \t]*/y

/** The urgency that a field asks for. Undefined: none. */
export function urgencyOf(field: string): number | undefined {
  const value = field.replace(/^ +| +$/g, '')
  let urgency: string | undefined
  for (let at = 0; ; ) {
    MEMBER.lastIndex = at
    const member = MEMBER.exec(value)
    if (member === null) return undefined
    if (member[1] === 'u') urgency = member[2]
    if (MEMBER.lastIndex === value.length) break
    COMMA.lastIndex = MEMBER.lastIndex
    if (!COMMA.test(value)) return undefined
    at = COMMA.lastIndex
  }
  return urgency !== undefined && /^-?0*[0-7]$/.test(urgency) && Number(urgency) >= 0 ? Number(urgency) : undefined
}
