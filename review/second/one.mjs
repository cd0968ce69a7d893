import {check,brief} from './fuzz.mjs'
import fs from 'node:fs'
for(const s of process.argv.slice(2)){const w=JSON.parse(fs.readFileSync(`/tmp/rv/rev2-s${s}.txt`,'utf8').split('\n').find(l=>l.startsWith('{')));const r=await check(w);console.log(s,brief(w),r.out.map(x=>'\n   '+x.join(' ')).join('')||'CLEAN')}
