import {simulate} from './build/test/instances/simulator.js'
const L=(name,r,c)=>({name,rate:r/1000,capacity:c})
const d=+(process.argv[2]??60),ms=+(process.argv[3]??40),from=+process.argv[4],to=+process.argv[5],seed=+(process.argv[6]??244)
const st=(process.argv[7]??'30,60;100,100;100,400').split(';').map((x,i)=>L('b'+i,...x.split(',').map(Number)))
const load=ms<0?{kind:'saturated',depth:-ms}:{kind:'poisson',ms}
const sim=await simulate({stack:st,count:1,sources:[{instance:0,keys:st.map(l=>l.name),load}],distance:()=>d,seed})
const s=sim.connections[0].store
const start=10+10*d
globalThis.T=0
const abs2=o=>JSON.stringify(o,(k,v)=>['at','from','until','nextAt','roomFrom','roomUntil','notBefore','token'].includes(k)&&typeof v==='number'?+(v-start).toFixed(1):k==='freeAt'?v.map(x=>+(x-start).toFixed(1)):typeof v==='number'?+v.toFixed(3):v)
const log=(...a)=>{if(T>=from&&T<to)console.log(T.toFixed(1),...a)}
for(const v of ['claim','lease','giveBack','admit']){const f=s[v];s[v]=q=>{const at=T;log('>',v,abs2({...q,stack:q.stack?.map(x=>x.limits.name),bucket:q.bucket?.limits.name,instance:undefined}));const p=f(q);p.then(a=>log('<',v,'of',at.toFixed(1),abs2(a)));return p}}
let n=0;for(let t=0;t<10000;t+=.5){T=t;await sim.run(t);for(;n<sim.releases.length;n++)log('RELEASE')
 if(t%500===0&&!(from>=0))console.log(t,'released',sim.releases.length,'waiting',sim.waiting,'rejected',sim.rejected)}
